"""Tests of the replay of ``benchmarks/lab_day.py``: the sampled jobs, the server, the contenders' rules, the tables."""

from dataclasses import replace

import pytest

from benchmarks import lab_day
from benchmarks.lab import bounds, tables
from benchmarks.lab.contenders import DEFAULT, FORGETFUL, ORACLE
from benchmarks.lab.day import DAY_S, GIB, HOUR_S, Job, Setting, jobs_of_day
from benchmarks.lab.figures import day_of
from benchmarks.lab.others import Exclusive
from benchmarks.lab.replay import Attempt, NoGpu, Replay, Start, Wait
from benchmarks.lab.rules import Autogpu
from benchmarks.lab.server import Server

ONE_CARD = Setting(gpus=1, card_bytes=24 * GIB)


def job(number=0, *, at_s=0.0, hours=1.0, gib=3.0, utilization=0.5, **fields):
    return Job(number, 0, number, number, at_s, hours * HOUR_S, int(gib * GIB), utilization, **fields)


class Puts:
    """A contender that starts every job on the first card."""

    lag_s = 0.0

    def __init__(self, caps_gib=()):
        self._caps = dict(enumerate(caps_gib))
        self.learned = []

    def place(self, attempt, now_s, server, ahead):
        cap = self._caps.get(attempt.job.number)
        # A second attempt has no cap, because it would fail at the same one again.
        return Start(0, cap_bytes=None if cap is None or attempt.earlier else int(cap * GIB))

    def learn(self, run, took_bytes, *, has_failed):
        self.learned.append((took_bytes / GIB, has_failed))

    def is_behind(self, attempt, refused):
        return True


def replayed(contender, *jobs, setting=ONE_CARD):
    return Replay(setting, 1, contender, jobs).run()


# The jobs of a day


def test_same_seed_gives_the_same_day():
    assert jobs_of_day(Setting(), 3) == jobs_of_day(Setting(), 3) != jobs_of_day(Setting(), 4)


def test_load_changes_only_the_durations_of_jobs():
    few, many = jobs_of_day(Setting(load=0.6), 1), jobs_of_day(Setting(load=1.2), 1)

    assert [replace(job, duration_s=0.0) for job in few] == [replace(job, duration_s=0.0) for job in many]


@pytest.mark.parametrize("load", [0.6, 0.9, 1.2])
def test_durations_of_jobs_sum_to_the_load(load):
    jobs = jobs_of_day(Setting(load=load, gpus=3), 1)

    assert sum(job.duration_s for job in jobs) == pytest.approx(load * 3 * DAY_S, rel=1e-6)
    assert min(job.duration_s for job in jobs) >= 60


# The server


def test_job_that_reaches_its_cap_fails_and_is_started_again():
    contender = Puts(caps_gib=[2])
    outcome = replayed(contender, job(gib=5))

    # Memory grows in twelve steps. The sixth needs 0.5 + 2.25 GiB, more than the cap of 2 GiB.
    assert [time_s for time_s, _ in outcome.deaths] == [pytest.approx(10 + 30)]
    assert (outcome.failed, outcome.victims, outcome.lost_s) == (1, 0, pytest.approx(30))
    assert len(outcome.starts) == 2
    assert outcome.took_s[0] > HOUR_S + 300
    assert contender.learned == [(pytest.approx(0.5 + 4.5 * 6 / 12), True), (5.0, False)]


def test_job_whose_memory_a_later_job_took_is_a_victim():
    outcome = replayed(Puts(), job(0, gib=22), job(1, gib=4, at_s=3))

    assert (outcome.victims, outcome.deaths[0][1]) == (1, 0)


# The rules of autogpu


def attempt_of(given):
    return Attempt(given, given.submitted_s)


def test_second_job_becomes_a_best_effort_job_or_obeys_busy():
    server = Server(1, 24 * GIB)
    server.start(job(1), 0, 0.0, claim_bytes=24 * GIB).step = 12
    assert Autogpu().place(attempt_of(job(2)), 59.0, server, ()) == Wait()
    answer = Autogpu().place(attempt_of(job(2)), 60.0, server, ())

    assert isinstance(answer, Start)
    assert (answer.card, answer.claim_bytes) == (0, 0)
    assert 0 < answer.cap_bytes < 21 * GIB
    assert Autogpu("wait").place(attempt_of(job(2)), 10.0, server, ()) == Wait()
    assert Autogpu("cpu").place(attempt_of(job(2)), 10.0, server, ()) == NoGpu()


def test_no_job_fails_if_all_state_their_true_needs():
    outcome = Replay(Setting(), 1, Autogpu("wait", has_true_needs=True)).run()

    assert (outcome.failed, outcome.victims, outcome.over_byte_s) == (0, 0, 0)


def test_job_that_waits_to_share_starts_after_a_minute():
    outcome = replayed(Autogpu(), job(0), job(1, at_s=5), job(2, at_s=6))

    assert [(number, round(time_s)) for time_s, number, _, _ in outcome.starts] == [(0, 10), (1, 72), (2, 132)]


def test_wait_to_share_ends_after_30_minutes():
    outcome = replayed(Autogpu(), job(0, gib=20), job(1, gib=2, at_s=5))

    assert [(number, round(time_s)) for time_s, number, _, _ in outcome.starts] == [(0, 10), (1, 5 + 10 + 1802)]


def test_jobs_whose_waits_end_together_start_a_minute_apart():
    outcome = replayed(Autogpu(), job(0, gib=20), job(1, gib=2.5, at_s=5), job(2, gib=2.5, at_s=6))
    first_s, second_s = (time_s for time_s, _, _, _ in outcome.starts[1:3])

    assert (round(second_s - first_s), outcome.victims) == (62, 0)


LARGE = job(1, gib=12, at_s=5)


def server_with_14_gib_in_use():
    server = Server(1, 24 * GIB)
    server.start(job(0, gib=14), 0, 0.0).step = 12
    return server


@pytest.mark.parametrize(
    ("options", "is_waiting"),
    [({}, False), ({"earlier": [LARGE]}, True), ({"earlier": [LARGE], "has_history": False}, False)],
    ids=["script-without-runs", "script-with-a-run", "history-off"],
)
def test_job_waits_if_its_scripts_last_runs_took_more_than_is_free(options, is_waiting):
    answer = Autogpu(**options).place(attempt_of(LARGE), 100.0, server_with_14_gib_in_use(), ())

    assert (answer == Wait()) is is_waiting


def test_script_that_failed_waits_for_the_end_of_its_neighbour():
    outcome = replayed(Autogpu(), job(0, gib=14, hours=0.6), replace(LARGE, submitted_s=100.0))

    assert [number for _, number in outcome.deaths] == [1]
    assert [number for _, number, _, _ in outcome.starts] == [0, 1, 1]
    assert outcome.starts[2][0] == outcome.took_s[0]


def test_job_that_fits_passes_a_waiting_job_that_does_not():
    contender = Autogpu(earlier=[LARGE])
    small = attempt_of(job(2, gib=3, at_s=6))
    ahead = (attempt_of(LARGE),)

    assert isinstance(contender.place(small, 100.0, server_with_14_gib_in_use(), ahead), Start)
    assert not contender.is_behind(small, *ahead)
    assert contender.is_behind(attempt_of(replace(LARGE, number=3)), *ahead)


def test_earlier_day_has_other_jobs_of_the_same_scripts():
    today, yesterday = jobs_of_day(Setting(), 1), jobs_of_day(Setting(), 1, 1)

    assert [job.submitted_s for job in today] != [job.submitted_s for job in yesterday]
    sizes = {job.script: job.peak_bytes for job in today}
    known = [job.peak_bytes / sizes[job.script] for job in yesterday if job.script in sizes]
    assert known == [pytest.approx(1, abs=0.16)] * len(known)


# Bounds and tables


@pytest.mark.parametrize("load", [0.6, 1.2])
def test_mean_times_are_not_below_the_bounds(load):
    setting = Setting(load=load)
    jobs = jobs_of_day(setting, 2)
    exclusive = day_of(Replay(setting, 2, Exclusive()).run())
    oracle = day_of(Replay(setting, 2, Autogpu("wait", has_true_needs=True)).run())

    assert bounds.exclusive(jobs, setting.gpus) / HOUR_S <= exclusive.mean_h
    assert bounds.shared(jobs, setting.gpus) / HOUR_S <= oracle.mean_h


def test_exclusive_bound_runs_the_shortest_remaining_job_first():
    jobs = [job(0, hours=3), job(1, hours=1), job(2, hours=2, at_s=HOUR_S)]

    # On one card, job 1 runs from hour 0 to 1, job 2 from 1 to 3, and job 0 from 3 to 6.
    assert bounds.exclusive(jobs, 1) == pytest.approx((1 + 2 + 6) / 3 * HOUR_S)


def a_table():
    setting = Setting(jobs=20)
    day = day_of(Replay(setting, 1, Autogpu()).run())
    worse, best = replace(day, failed=day.failed + 50, mean_h=day.mean_h + 1), replace(day, mean_h=0.9 * day.mean_h)
    days = {DEFAULT: day, "by hand": worse, FORGETFUL: worse, ORACLE: best}
    return lab_day.table(setting, list(days), {(setting, name): [each] for name, each in days.items()}, seeds=1)


def test_report_shows_the_setting_and_if_the_goals_are_met():
    told = tables.report([a_table()])

    assert "4 GPUs of 24 GiB, load 0.9, no script states its need; 1 days of 20 jobs" in told
    assert "mean / mean with true needs: 1.11, goal: at most 1.3, met" in told
