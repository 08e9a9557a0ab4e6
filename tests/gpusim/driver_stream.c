/* Driver API: streams, events and host callbacks. All work is complete when its call returns. */
#include "gpusim.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* ---- streams ---- */

/* NULL and two small numbers are the default streams, which are not allocated. */
static bool is_made(Stream *stream) {
  return (uintptr_t)stream > 16;
}

API CUresult cuStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
  NEEDS_INIT;
  if (!current_context()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *stream = calloc(1, sizeof **stream);
  **stream = (Stream){current_context(), flags, priority, NULL};
  return CUDA_SUCCESS;
}

API CUresult cuStreamCreate(Stream **stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

API CUresult cuStreamDestroy_v2(Stream *stream) {
  NEEDS_INIT;
  if (is_made(stream)) {
    free(stream);
  }
  return CUDA_SUCCESS;
}
ALIAS(cuStreamDestroy, cuStreamDestroy_v2);

API CUresult cuStreamGetPriority(Stream *stream, int *priority) {
  NEEDS_INIT;
  *priority = is_made(stream) ? stream->priority : 0;
  return CUDA_SUCCESS;
}

API CUresult cuStreamGetFlags(Stream *stream, unsigned *flags) {
  NEEDS_INIT;
  *flags = is_made(stream) ? stream->flags : 0;
  return CUDA_SUCCESS;
}

API CUresult cuStreamGetCtx(Stream *stream, Context **context) {
  NEEDS_INIT;
  *context = is_made(stream) ? stream->context : current_context();
  return CUDA_SUCCESS;
}

API CUresult cuStreamGetId(Stream *stream, uint64_t *id) {
  NEEDS_INIT;
  *id = (uintptr_t)stream;
  return CUDA_SUCCESS;
}

ACCEPT(cuStreamSynchronize, Stream *stream)
ACCEPT(cuStreamQuery, Stream *stream)
ACCEPT(cuStreamWaitEvent, Stream *stream, Event *event, unsigned flags)

/* ---- capture: the captured graph stays empty, because nothing is ever run ---- */

API CUresult cuStreamBeginCapture_v2(Stream *stream, int mode) {
  NEEDS_INIT;
  if (is_made(stream)) {
    stream->captured_graph = new_handle("graph");
  }
  return CUDA_SUCCESS;
}
ALIAS(cuStreamBeginCapture, cuStreamBeginCapture_v2);

API CUresult cuStreamBeginCaptureToGraph(Stream *stream, void *graph, void *dependencies, void *edges,
                                         size_t count, int mode) {
  NEEDS_INIT;
  if (is_made(stream)) {
    stream->captured_graph = graph;
  }
  return CUDA_SUCCESS;
}

API CUresult cuStreamEndCapture(Stream *stream, void **graph) {
  NEEDS_INIT;
  if (is_made(stream)) {
    *graph = stream->captured_graph;
    stream->captured_graph = NULL;
  }
  return CUDA_SUCCESS;
}

/* Always "not capturing", even during a capture: programs refuse some calls then, which do no harm here. */
API CUresult cuStreamIsCapturing(Stream *stream, int *status) {
  NEEDS_INIT;
  *status = 0;
  return CUDA_SUCCESS;
}

API CUresult cuStreamGetCaptureInfo(Stream *stream, int *status, uint64_t *id) {
  return cuStreamIsCapturing(stream, status);
}

API CUresult cuStreamGetCaptureInfo_v2(Stream *stream, int *status, uint64_t *id, void **graph,
                                       const void ***nodes, size_t *count) {
  return cuStreamIsCapturing(stream, status);
}

ACCEPT(cuThreadExchangeStreamCaptureMode, int *mode)

/* ---- host callbacks: the driver runs them in order on its own thread, as documented ---- */

typedef struct Callback {
  struct Callback *next;
  void (*plain)(void *data);
  void (*with_status)(Stream *stream, CUresult status, void *data);
  Stream *stream;
  void *data;
} Callback;

static Callback *first_callback;
static Callback **end_of_callbacks = &first_callback;
static pthread_mutex_t callbacks_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t callback_is_there = PTHREAD_COND_INITIALIZER;
static pthread_cond_t callbacks_are_done = PTHREAD_COND_INITIALIZER;
static bool callback_runs;
static __thread bool is_callback_thread;

static Callback *next_callback(void) {
  pthread_mutex_lock(&callbacks_lock);
  callback_runs = false;
  while (!first_callback) {
    pthread_cond_broadcast(&callbacks_are_done);
    pthread_cond_wait(&callback_is_there, &callbacks_lock);
  }
  callback_runs = true;
  Callback *next = first_callback;
  first_callback = next->next;
  if (!first_callback) {
    end_of_callbacks = &first_callback;
  }
  pthread_mutex_unlock(&callbacks_lock);
  return next;
}

void callbacks_settle(void) {
  enum { MOST_NS = 200 * 1000 * 1000 };
  if (is_callback_thread) {
    return;
  }
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += MOST_NS;
  if (until.tv_nsec >= 1000000000) {
    until.tv_sec++;
    until.tv_nsec -= 1000000000;
  }
  pthread_mutex_lock(&callbacks_lock);
  int error = 0;
  while ((first_callback || callback_runs) && error == 0) {
    error = pthread_cond_timedwait(&callbacks_are_done, &callbacks_lock, &until);
  }
  pthread_mutex_unlock(&callbacks_lock);
}

static void *run_callbacks(void *unused) {
  is_callback_thread = true;
  for (;;) {
    Callback *callback = next_callback();
    if (callback->plain) {
      callback->plain(callback->data);
    } else {
      callback->with_status(callback->stream, CUDA_SUCCESS, callback->data);
    }
    free(callback);
  }
  return unused;
}

static CUresult enqueue(Callback callback) {
  static bool has_thread;
  NEEDS_INIT;
  Callback *queued = malloc(sizeof *queued);
  *queued = callback;
  pthread_mutex_lock(&callbacks_lock);
  if (!has_thread) {
    pthread_t thread;
    pthread_create(&thread, NULL, run_callbacks, NULL);
    pthread_detach(thread);
    has_thread = true;
  }
  *end_of_callbacks = queued;
  end_of_callbacks = &queued->next;
  pthread_cond_signal(&callback_is_there);
  pthread_mutex_unlock(&callbacks_lock);
  return CUDA_SUCCESS;
}

API CUresult cuLaunchHostFunc(Stream *stream, void (*function)(void *), void *data) {
  return enqueue((Callback){.plain = function, .data = data});
}

API CUresult cuStreamAddCallback(Stream *stream, void (*function)(Stream *, CUresult, void *), void *data,
                                 unsigned flags) {
  return enqueue((Callback){.with_status = function, .stream = stream, .data = data});
}

/* ---- events ---- */

struct Event {
  struct timespec recorded;
};

API CUresult cuEventCreate(Event **event, unsigned flags) {
  NEEDS_INIT;
  *event = calloc(1, sizeof **event);
  return CUDA_SUCCESS;
}

API CUresult cuEventRecord(Event *event, Stream *stream) {
  NEEDS_INIT;
  clock_gettime(CLOCK_MONOTONIC, &event->recorded);
  return CUDA_SUCCESS;
}

API CUresult cuEventRecordWithFlags(Event *event, Stream *stream, unsigned flags) {
  return cuEventRecord(event, stream);
}

API CUresult cuEventDestroy_v2(Event *event) {
  NEEDS_INIT;
  free(event);
  return CUDA_SUCCESS;
}
ALIAS(cuEventDestroy, cuEventDestroy_v2);

API CUresult cuEventElapsedTime(float *milliseconds, Event *start, Event *end) {
  NEEDS_INIT;
  float seconds = (float)(end->recorded.tv_sec - start->recorded.tv_sec);
  float nanoseconds = (float)(end->recorded.tv_nsec - start->recorded.tv_nsec);
  *milliseconds = seconds * 1e3f + nanoseconds * 1e-6f;
  return CUDA_SUCCESS;
}
ALIAS(cuEventElapsedTime_v2, cuEventElapsedTime); /* CUDA 13's name */

ACCEPT(cuEventQuery, Event *event)
ACCEPT(cuEventSynchronize, Event *event)
