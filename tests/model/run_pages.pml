/* SPDX-License-Identifier: Apache-2.0 */
/* The hand-over of a process's page to `rmmshim run` (src/shared/job.c, src/tool/run/job.c) as a model for Spin:
 * every order in which the steps of two processes, of their `run` and of a `run` above it can follow each other.
 * One call of the kernel and one access to the memory file is one step; what a `run` does between two calls
 * belongs to the first, as nobody else sees it.
 *
 * From shared/job.c it has rs_run_ask_at, send_request, connect_to, take_answer and say_unheld; from
 * report/publish.c rs_publish_begin; from tool/run/job.c job_watch, accept_one, take_request,
 * answer_job_request, miss_other_version, pass_on, hold_page, end_connection, end_silent_connections, report_gone,
 * job_end and job_take_summary; from tool/run/parent.c parent_run.
 *
 * The program of the `run` above is the `run` below, and the program of that is process 0.  Process 1 belongs to
 * either, and may outlive both.  A process may die while it asks, or as soon as it has asked; process 1 may be
 * stopped for good before it sends its request.  A call may fail at any time: the socket cannot be reached, a
 * request cannot be sent, there is no memory for a page.  Two seconds may have passed at any time.  Either both
 * processes ask, or one does and one thing more may happen at any time: a `run` is killed, and the kernel kills
 * its program, or a `run` is stopped for good.
 *
 * What is checked when a `run` takes its summary: each process that has sent its request, or has tried to, while
 * the `run`'s program lived is counted once, in the summary or as missed; no process is counted twice.  The same
 * holds in the `run` above for the processes of the `run` below, unless that was killed.  Each page that is read
 * is mapped, and no descriptor is left but those of processes that still run.  Nobody waits for ever, whoever is
 * gone or stopped, but a `run` for its program.
 *
 * Left out: requests for the file of a limit, strangers' connections, a `run` that has no descriptors left,
 * processes that this PID namespace does not show, processes that cannot open the memory file, programs that
 * become another one by exec(), and processes that ask when their `run` has ended.
 *
 * Each switch leaves out one rule, and the model fails with it (tests/model/run):
 *   CLEARED_AFTER_START  the count of pages that were not sent is cleared when the program has started
 *   UNSENT_UNSAID        a process whose message could not be sent does not say so
 *   TIMED_OUT_SAID       a process that had no answer in time says so
 *   REFUSED_UNCOUNTED    a page that could not be held is not counted
 *   VERSION_NOT_PASSED   a process of another version is not told to the `run` above
 *   MISSED_NOT_PASSED    nor is a page that could not be held here
 *   UNHELD_NOT_PASSED    nor are the pages that were not sent
 *   QUEUE_LEFT           the end does not accept the connections that wait
 *   REQUESTS_LEFT        nor wait for the requests of those that were accepted
 *   RUNNING_LEFT         nor count the processes that still run
 *   ENDED_KEPT           a process that has ended is counted, and stays in the list
 *   UNMAPPED_FIRST       a page is given up, and then read
 *   PAGE_KEPT_OPEN       the descriptor of a page is not closed
 *   SILENT_KEPT          a connection without a request is waited for
 *   SILENT_NOT_SHUT      or is closed when a look has shown no request
 *   ANSWER_WAITED_FOR    a process waits for its answer without a limit */

#define RUNS 2
#define PROCESSES 2
#define CONNECTIONS 4 /* one of each process, and then those of the `run` below to the one above */
#define ABOVE 0
#define BELOW 1
#define OF(run, process) ((run) * PROCESSES + (process))

mtype = { NONE, QUEUED, ACCEPTED, SHUT, CLOSED };
mtype = { PAGE, NO_PAGE, OTHER_VERSION };
mtype = { STALE, SENT, UNSENT };
mtype = { NOTHING, BELOW_DIES, BELOW_STOPS, ABOVE_DIES, ABOVE_STOPS };
mtype may; /* happen at any time */

/* ---- what the kernel knows ---- */

bool process_alive[PROCESSES] = true;
bool run_alive[RUNS] = true;
bool has_started[RUNS]; /* its program */
bool asks[PROCESSES]; /* it uses CUDA */
bool process_stopped, run_stopped[RUNS];
byte unheld[RUNS]; /* the memory file */

mtype state[CONNECTIONS] = NONE; /* at the side of the `run`; CLOSED: by it */
bool is_client_open[CONNECTIONS];
mtype message[CONNECTIONS] = NONE;
byte page_of[CONNECTIONS];
bool is_answered[CONNECTIONS];

/* ---- a `run` ---- */

byte job_of[PROCESSES]; /* RMMSHIM_JOB */
byte descriptors[RUNS]; /* of connections, pages and processes */
bool is_held[RUNS * PROCESSES];
bool has_pidfd[RUNS * PROCESSES];
bool is_mapped[RUNS * PROCESSES];
byte counted[RUNS * PROCESSES]; /* in the summary */
byte missed[RUNS];

/* ---- what must be true ---- */

bool has_begun[PROCESSES];  /* to ask */
bool is_owed[PROCESSES];    /* its `run` must count it */
bool is_complete[RUNS];     /* the summary was taken */

#define SERVER(c) ((c) < PROCESSES -> job_of[c] : ABOVE)
#define IS_OF(c, run) (state[c] != NONE && state[c] != CLOSED && SERVER(c) == (run))
#define PROGRAM_LIVES(run) ((run) == BELOW -> process_alive[0] : run_alive[BELOW])

/* ---- rs_run_ask_at; c: the connection that it makes ---- */

inline note_owed(process)
{
    is_owed[process] = is_owed[process] || (run_alive[job_of[process]] && PROGRAM_LIVES(job_of[process]))
}

#ifdef TIMED_OUT_SAID
#define IF_LATE STALE
#else
#define IF_LATE SENT
#endif

inline ask(c, process, what)
{
    if
    :: result = STALE /* no socket, or it cannot be reached */
    :: d_step { run_alive[SERVER(c)] -> state[c] = QUEUED; is_client_open[c] = true } /* connect_to */
        if
        :: d_step {
               state[c] == QUEUED || state[c] == ACCEPTED -> /* rs_job_send */
               message[c] = what;
               page_of[c] = process;
               if
               :: c < PROCESSES -> note_owed(process)
               :: else
               fi
           }
            if
            :: d_step { is_answered[c] || state[c] == CLOSED -> result = SENT }
#ifndef ANSWER_WAITED_FOR
            :: d_step { !is_answered[c] && state[c] != CLOSED -> result = IF_LATE } /* RS_JOB_ANSWER_MS */
#endif
            fi
        :: result = UNSENT
        :: d_step { c < PROCESSES -> process_alive[process] = false; is_client_open[c] = false } /* it dies */
        :: c == 1 -> process_stopped = true /* for good */
        fi
    fi;
    d_step {
        if
#ifdef UNSENT_UNSAID
        :: result == STALE && run_alive[SERVER(c)] -> unheld[SERVER(c)]++ /* say_unheld */
#else
        :: (result == STALE || result == UNSENT) && run_alive[SERVER(c)] -> unheld[SERVER(c)]++
#endif
        :: else
        fi;
        is_client_open[c] = false;
        is_answered[c] = false;
        result = 0
    }
}

/* ---- a process: rs_publish_begin ---- */

proctype client(byte me)
{
    mtype result, what;

    {
        atomic {
            has_started[job_of[me]] || !run_alive[job_of[me]];
            has_begun[me] = asks[me];
            if
            :: what = PAGE
            :: me == 1 -> what = OTHER_VERSION
            fi
        }
        if
        :: asks[me] -> ask(me, me, what); note_owed(me)
        :: else
        fi;
        process_alive[me] = false /* it ends, or dies while it waits, which is the same to others */
    } unless {
        !process_alive[me] || (me == 1 && process_stopped)
    }
}

/* ---- a `run` serves ---- */

inline accept_one(c)
{
    d_step { IS_OF(c, me) && state[c] == QUEUED -> state[c] = ACCEPTED; descriptors[me]++ }
}

#if defined(VERSION_NOT_PASSED)
#define PASSES (what != OTHER_VERSION)
#elif defined(MISSED_NOT_PASSED)
#define PASSES is_held[OF(me, whose)]
#else
#define PASSES true
#endif

/* hold_page maps the page, and opens the process if it lives. */
inline hold_page()
{
    assert(!is_held[OF(me, whose)]);
    is_held[OF(me, whose)] = true;
    is_mapped[OF(me, whose)] = true;
    has_pidfd[OF(me, whose)] = process_alive[whose];
    descriptors[me] = descriptors[me] + (process_alive[whose] -> 1 : 0)
}

#define CAN_BE_READ(c)                                                                       \
    (IS_OF(c, me) && (state[c] == SHUT || (state[c] == ACCEPTED && (message[c] != NONE || !is_client_open[c]))))

/* With answer_job_request and end_connection.  Nobody else sees what the `run` does with a request, so it is one
 * step up to the answer. */
inline take_request(c)
{
    atomic {
        CAN_BE_READ(c) -> /* rs_job_receive */
        what = message[c];
        whose = page_of[c];
        message[c] = NONE;
        page_of[c] = 0;
        descriptors[me] = descriptors[me] + (what == PAGE || what == OTHER_VERSION -> 1 : 0);
        if
        :: what == PAGE -> hold_page()
        :: what != NONE /* it is no page, or there is no memory */
#ifndef REFUSED_UNCOUNTED
            missed[me]++
#endif
        :: what == NONE
        fi;
        is_answered[c] = is_client_open[c] && (what == PAGE || what == NO_PAGE) /* rs_job_send */
    }
    if
    :: me == BELOW && what != NONE && PASSES ->
        assert(PROCESSES + passed < CONNECTIONS); /* else a process is passed twice */
        ask(PROCESSES + passed, whose, what);
        passed++
    :: else
    fi;
    d_step {
#ifndef PAGE_KEPT_OPEN
        descriptors[me] = descriptors[me] - (what == PAGE || what == OTHER_VERSION -> 1 : 0);
#endif
        state[c] = CLOSED;
        descriptors[me]--;
        what = 0;
        whose = 0
    }
}

/* end_silent_connections: two seconds have passed.  What is shut is then read, and ended (take_request). */
inline end_silent(c)
{
#ifdef SILENT_NOT_SHUT
    IS_OF(c, me) && state[c] == ACCEPTED && message[c] == NONE && is_client_open[c];
    d_step { state[c] = CLOSED; message[c] = NONE; descriptors[me]-- }
#else
    d_step { IS_OF(c, me) && state[c] == ACCEPTED && message[c] == NONE && is_client_open[c] -> state[c] = SHUT }
#endif
}

/* summary_add, of one process */
inline count_page(process)
{
#ifdef UNMAPPED_FIRST
    is_mapped[OF(me, process)] = false;
#endif
    assert(is_mapped[OF(me, process)]);
    counted[OF(me, process)]++
}

inline report_gone(process)
{
    d_step {
        is_held[OF(me, process)] && !process_alive[process] ->
        count_page(process);
        is_mapped[OF(me, process)] = false;
        descriptors[me] = descriptors[me] - (has_pidfd[OF(me, process)] -> 1 : 0);
        has_pidfd[OF(me, process)] = false;
#ifndef ENDED_KEPT
        is_held[OF(me, process)] = false
#endif
    }
}

#define IS_GONE(process) (is_held[OF(me, process)] && !process_alive[process])
#define IS_QUEUED(c) (IS_OF(c, me) && state[c] == QUEUED)
#define IS_ACCEPTED(c) (IS_OF(c, me) && (state[c] == ACCEPTED || state[c] == SHUT))
#define ANY_QUEUED (IS_QUEUED(0) || IS_QUEUED(1) || IS_QUEUED(2) || IS_QUEUED(3))
#define ANY_ACCEPTED (IS_ACCEPTED(0) || IS_ACCEPTED(1) || IS_ACCEPTED(2) || IS_ACCEPTED(3))

/* What must have been counted, and what may have been. */
#define IS_FROM_BELOW(process) (me == ABOVE && job_of[process] == BELOW && is_complete[BELOW])
#define MUST(process) (is_owed[process] && (job_of[process] == me || IS_FROM_BELOW(process)))
#define MAY(process) (has_begun[process] && (me == ABOVE || job_of[process] == BELOW))
#define TOTAL (counted[OF(me, 0)] + counted[OF(me, 1)] + missed[me])

inline check_summary()
{
    assert(counted[OF(me, 0)] <= 1 && counted[OF(me, 1)] <= 1);
    assert(TOTAL >= MUST(0) + MUST(1)); /* else one is not counted */
    assert(TOTAL <= MAY(0) + MAY(1));   /* else one is counted twice */
    assert(descriptors[me] == has_pidfd[OF(me, 0)] + has_pidfd[OF(me, 1)])
}

/* The kernel closes what a process or a `run` had that is gone. */
inline close_all_of_run(which)
{
    run_alive[which] = false;
    state[0] = (IS_OF(0, which) -> CLOSED : state[0]);
    state[1] = (IS_OF(1, which) -> CLOSED : state[1]);
    state[2] = (IS_OF(2, which) -> CLOSED : state[2]);
    state[3] = (IS_OF(3, which) -> CLOSED : state[3]);
    is_client_open[2] = is_client_open[2] && which != BELOW;
    is_client_open[3] = is_client_open[3] && which != BELOW
}

proctype run_(byte me)
{
    mtype result, what;
    byte whose, passed, i;

    {
        me == ABOVE || has_started[ABOVE]; /* job_begin: from here on it listens */
#ifdef CLEARED_AFTER_START
        has_started[me] = true;
        unheld[me] = 0;
#else
        unheld[me] = 0; /* job_watch */
        has_started[me] = true; /* parent_run: fork */
#endif
end:
        do /* job_serve_until, until the program has ended */
        :: accept_one(0)
        :: accept_one(1)
        :: accept_one(2)
        :: accept_one(3)
        :: take_request(0)
        :: take_request(1)
        :: take_request(2)
        :: take_request(3)
#ifndef SILENT_KEPT
        :: end_silent(0)
        :: end_silent(1)
        :: end_silent(2)
        :: end_silent(3)
#endif
        :: report_gone(0)
        :: report_gone(1)
        :: !PROGRAM_LIVES(me) -> break
        od;
        /* job_end */
#ifndef QUEUE_LEFT
        do
        :: accept_one(0)
        :: accept_one(1)
        :: accept_one(2)
        :: accept_one(3)
        :: !ANY_QUEUED -> break
        od;
#endif
#ifndef REQUESTS_LEFT
        do
        :: take_request(0)
        :: take_request(1)
        :: take_request(2)
        :: take_request(3)
#ifndef SILENT_KEPT
        :: end_silent(0)
        :: end_silent(1)
        :: end_silent(2)
        :: end_silent(3)
#endif
        :: !ANY_ACCEPTED -> break
        od;
#endif
        do
        :: report_gone(0)
        :: report_gone(1)
        :: !IS_GONE(0) && !IS_GONE(1) -> break
        od;
#ifndef UNHELD_NOT_PASSED
        do
        :: me == BELOW && i < unheld[me] ->
            assert(PROCESSES + passed < CONNECTIONS);
            ask(PROCESSES + passed, 0, NO_PAGE);
            passed++;
            i++
        :: else -> break
        od;
#endif
        atomic {
#ifndef RUNNING_LEFT
            if
            :: is_held[OF(me, 0)] -> count_page(0)
            :: else
            fi;
            if
            :: is_held[OF(me, 1)] -> count_page(1)
            :: else
            fi;
#endif
            missed[me] = missed[me] + unheld[me]; /* job_take_summary */
            is_complete[me] = true;
            check_summary();
            close_all_of_run(me)
        }
    } unless {
        !run_alive[me] || run_stopped[me]
    }
}

/* ---- what may happen ---- */

proctype kernel()
{
end:
    do
    :: d_step {
           may == BELOW_DIES && run_alive[BELOW] && has_started[BELOW] ->
           close_all_of_run(BELOW);
           process_alive[0] = false;
           is_client_open[0] = false
       }
    :: d_step {
           may == ABOVE_DIES && run_alive[ABOVE] && has_started[ABOVE] ->
           close_all_of_run(ABOVE);
           close_all_of_run(BELOW);
           process_alive[0] = false;
           is_client_open[0] = false
       }
    :: d_step {
           may == BELOW_STOPS && run_alive[BELOW] && has_started[BELOW] && !run_stopped[BELOW] ->
           run_stopped[BELOW] = true
       }
    :: d_step {
           may == ABOVE_STOPS && run_alive[ABOVE] && has_started[ABOVE] && !run_stopped[ABOVE] ->
           run_stopped[ABOVE] = true
       }
    od
}

/* When nothing can happen any more, all have ended that were not stopped, and whose program was not. */
proctype observer()
{
    timeout ->
    assert(!process_alive[0] && (!process_alive[1] || process_stopped));
    assert(!run_alive[BELOW] || run_stopped[BELOW]);
    assert(!run_alive[ABOVE] || run_stopped[ABOVE] || run_stopped[BELOW])
}

init {
    atomic {
        if
        :: may = NOTHING
        :: may = BELOW_DIES
        :: may = BELOW_STOPS
        :: may = ABOVE_DIES
        :: may = ABOVE_STOPS
        fi;
#ifdef ONLY
        may = ONLY;
#endif
        job_of[0] = BELOW;
        if
        :: job_of[1] = BELOW
        :: job_of[1] = ABOVE
        fi;
#ifdef JOB
        job_of[1] = JOB;
#endif
        if
        :: may == NOTHING -> asks[0] = true; asks[1] = true
        :: may != NOTHING -> asks[0] = true
        :: may != NOTHING -> asks[1] = true
        fi;
        run kernel();
        run observer();
        run run_(ABOVE);
        run run_(BELOW);
        run client(0);
        run client(1)
    }
}
