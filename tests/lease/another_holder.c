/* A second implementation of docs/lease-protocol.md: claim a whole GPU that is neither held nor awaited, then exec
 * COMMAND.
 *
 *     AUTOGPU_LEASE_DIR=/run/autogpu another_holder BYTES UUID,UUID,... COMMAND [ARGUMENT ...]
 *
 * BYTES is the memory of a GPU. The lease lasts as long as COMMAND, which inherits the locked file. The exit status is
 * 75 if there is no GPU now, and 1 if the folder can't be used.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_BYTES = 64 * 1024, SILENCE_MS = 5000, TRIES = 1000, PAUSE_US = 2000 };
enum { FIRST_INHERITED = 230, TRY_AGAIN = 75 };

static void stop(const char *why, int status)
{
    fprintf(stderr, "another_holder: %s\n", why);
    exit(status);
}

/* Return the offset at which the owner's lock begins: for a ticket, the time of its last heartbeat in ms.
 * Return -1 if no live process owns the file. */
static long long owned_from(int file)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    if (fcntl(file, F_OFD_GETLK, &lock))
        return 0; /* if the kernel can't answer, assume a live owner */
    return lock.l_type == F_UNLCK ? -1 : lock.l_start;
}

/* True if the file is a live lease or ticket whose text names the GPU. Text that is not JSON may count, too. */
static int names_gpu(int folder, const char *name, const char *uuid)
{
    static char text[MOST_BYTES + 1], key[200], entry[200];
    struct stat status;
    struct timespec now;
    if (fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) || !S_ISREG(status.st_mode))
        return 0;
    int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
        stop("this process may open no more files", 1);
    long long from = file < 0 ? -1 : owned_from(file);
    ssize_t size = from < 0 || status.st_size > MOST_BYTES ? 0 : read(file, text, MOST_BYTES);
    text[size < 0 ? 0 : size] = 0;
    if (file >= 0)
        close(file);
    snprintf(key, sizeof key, "\"%s\":", uuid);
    if (!strncmp(name, "job.", 4))
        return strstr(text, key) != NULL;
    snprintf(entry, sizeof entry, "\"%s\"", uuid);
    clock_gettime(CLOCK_REALTIME, &now);
    long long silent = now.tv_sec * 1000LL + now.tv_nsec / 1000000 - (from ? from : status.st_ctim.tv_sec * 1000LL);
    return llabs(silent) < SILENCE_MS && (strstr(text, "\"uuids\":[]") || strstr(text, entry));
}

static int is_taken(int folder, const char *uuid, const char *own)
{
    int found = 0, again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = again < 0 ? NULL : fdopendir(again);
    if (!entries)
        stop("the folder can't be read", 1);
    for (struct dirent *entry; !found && (entry = readdir(entries));)
        if ((!strncmp(entry->d_name, "job.", 4) || !strncmp(entry->d_name, "wait.", 5)) && strcmp(entry->d_name, own))
            found = names_gpu(folder, entry->d_name, uuid);
    closedir(entries);
    return found;
}

/* Put a lease of this process into the folder, complete and locked when it becomes visible. */
static void put_lease(int folder, const char *name, const char *uuid, const char *bytes, const char *command)
{
    char hidden[40], space[64] = "", script[80], stat[1024] = "", *field = stat;
    unsigned long long number;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (getrandom(&number, sizeof number, 0) != sizeof number || readlink("/proc/self/ns/pid", space, 63) < 0)
        stop("the system refuses", 1);
    int self = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (self < 0 || read(self, stat, sizeof stat - 1) < 0 || !(field = strrchr(stat, ')')))
        stop("/proc can't be read", 1);
    for (int after = 2; after < 22; after++) /* the start time is field 22, and the name in () is field 2 */
        field = strchr(field + 1, ' ');
    snprintf(script, sizeof script, "%s", strrchr(command, '/') ? strrchr(command, '/') + 1 : command);
    for (char *c = script; *c; c++)
        *c = isalnum((unsigned char)*c) || strchr("._-", *c) ? *c : '_';
    snprintf(hidden, sizeof hidden, ".job.%016llx", number);
    /* No O_CLOEXEC: the command inherits the file, and so keeps the lock. */
    int file = openat(folder, hidden, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || fcntl(file, F_OFD_SETLK, &lock) ||
        dprintf(file,
                "{\"v\":1,\"pid\":%d,\"start\":%llu,\"pidns\":\"%s\",\"script\":\"%s\",\"group\":\"%s\","
                "\"gpus\":{\"%s\":%llu}}\n",
                getpid(), strtoull(field, NULL, 10), space, script, name, uuid, strtoull(bytes, NULL, 10)) < 0 ||
        fchmod(file, 01644) || renameat(folder, hidden, folder, name))
        stop("the lease can't be written", 1);
    if (fcntl(file, F_DUPFD, FIRST_INHERITED) >= 0) /* a shell uses small descriptor numbers itself */
        close(file);
}

int main(int argc, char **argv)
{
    char name[64];
    unsigned number;
    struct stat status;
    if (argc < 4 || !getenv("AUTOGPU_LEASE_DIR"))
        stop("AUTOGPU_LEASE_DIR=FOLDER another_holder BYTES UUID,UUID,... COMMAND [ARGUMENT ...]", 2);
    int folder = open(getenv("AUTOGPU_LEASE_DIR"), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0 || fstat(folder, &status) || !(status.st_mode & S_ISVTX))
        stop("the folder is not there, or users may remove each other's files in it", 1);
    for (int tries = 0; flock(folder, LOCK_EX | LOCK_NB); usleep(PAUSE_US))
        if (++tries > TRIES)
            stop("another process keeps the mutex", TRY_AGAIN);
    char *uuid = strtok(argv[2], ",");
    while (uuid && is_taken(folder, uuid, ""))
        uuid = strtok(NULL, ",");
    if (!uuid)
        stop("no GPU is free", TRY_AGAIN);
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        stop("the system refuses", 1);
    snprintf(name, sizeof name, "job.%u.%d.%08x", geteuid(), getpid(), number);
    put_lease(folder, name, uuid, argv[1], argv[3]);
    if (is_taken(folder, uuid, name)) { /* a process without the mutex has claimed it, too */
        unlinkat(folder, name, 0);
        stop("another process took the GPU in the same moment", TRY_AGAIN);
    }
    flock(folder, LOCK_UN);
    setenv("CUDA_VISIBLE_DEVICES", uuid, 1);
    execvp(argv[3], argv + 3);
    unlinkat(folder, name, 0);
    stop("COMMAND can't be started", 127);
}
