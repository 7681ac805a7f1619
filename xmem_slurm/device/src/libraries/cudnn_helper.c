/* The helper process (plans/answer.c) in which the job's own cuDNN answers: started, asked, given up.
 *
 * It is started by the first question that has no answer on disk. It is asked through its standard input, a socket, and
 * ends when that is closed or when nobody asks for a while. Whatever fails means no answer, and no answer is a doubt.
 *
 * How long an answer may take is counted by what the helper does: the time on the wall, but for that in which it was
 * ready to run while others had the CPUs (/proc/PID/schedstat; the kernel's Documentation/scheduler/sched-stats.rst).
 * Of all answers together its CPU seconds count. So a busy machine makes an answer later, not another one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cudnn_plans.h"

#define MAX_FAILURES 3 /* helpers that died before they answered */
#define SECONDS_WITHOUT_DEADLINE 30.0
#define LOOK_MILLISECONDS 100
#ifndef SCHEDSTAT
#define SCHEDSTAT "/proc/%d/schedstat"
#endif

static int helper = -1; /* our end of the socket */
static int number;      /* the helper's, in /proc; 0 is not known */
static pid_t owner;     /* who started it: a fork must not talk into its parent's conversation */
static int failures;
static double spent, allowed;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void hang_up(void) {
    if (helper >= 0)
        close(helper);
    helper = -1;
}

typedef struct {
    double ran, waited; /* for a CPU; seconds */
} Account;

/* What the kernel has in its books of the helper; nothing, where it keeps none. */
static Account account(void) {
    char path[sizeof SCHEDSTAT + 16];
    unsigned long long ran = 0, waited = 0;
    snprintf(path, sizeof path, SCHEDSTAT, number);
    FILE *file = number ? fopen(path, "re") : NULL;
    if (!file)
        return (Account){0, 0};
    int read = fscanf(file, "%llu %llu", &ran, &waited);
    fclose(file);
    return read == 2 ? (Account){(double)ran / 1e9, (double)waited / 1e9} : (Account){0, 0};
}

static double latest_for_an_answer(void) {
    const char *deadline = getenv("XMEM_DEADLINE");
    double start = now(), most = deadline ? (strtod(deadline, NULL) - start) / 3 : PATIENCE_SECONDS;
    return start + (most < PATIENCE_SECONDS ? most : PATIENCE_SECONDS);
}

/* Read up to a last line; NULL if the helper ends, says too much or takes too long, counted from `before` it was asked:
 * it may have waited for a CPU since. What has come is read first: it may be this process that had none. */
static char *receive(double seconds, Account before) {
    double started = now(), latest = latest_for_an_answer();
    size_t bytes = 0;
    char *text = malloc(MAX_ANSWER_BYTES + 1);
    while (text && bytes < MAX_ANSWER_BYTES) {
        struct pollfd socket = {.fd = helper, .events = POLLIN};
        int ready = poll(&socket, 1, LOOK_MILLISECONDS);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready == 0 && now() < latest && now() - started - (account().waited - before.waited) < seconds)
            continue;
        ssize_t more = ready > 0 ? recv(helper, text + bytes, MAX_ANSWER_BYTES - bytes, 0) : 0;
        if (more <= 0)
            break;
        bytes += (size_t)more;
        text[bytes] = 0;
        number = number ? number : atoi(text);
        if (cudnn_is_whole(text, bytes))
            return text;
    }
    free(text);
    return NULL;
}

static int say(const char *text) {
    for (size_t left = strlen(text); left;) {
        ssize_t sent = send(helper, text, left, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return 0;
        text += sent;
        left -= (size_t)sent;
    }
    return 1;
}

/* Start the helper with nothing of the job's but where libraries are found: first where the wheels of CUDA 12 and 13
 * keep NVRTC and cuBLASLt, which cuDNN loads by name. It becomes nobody's child at once, so that a script which waits
 * for its children does not wait for this one. */
static int spawn(int theirs, const char *library) {
    char program[4096], runtime[4096], driver[4096], libraries[16384];
    const char *path = getenv("LD_LIBRARY_PATH"), *slash = strrchr(library, '/');
    int folder = slash ? (int)(slash - library) : 0;
    snprintf(libraries, sizeof libraries,
             "LD_LIBRARY_PATH=%.*s/../../cu%d/lib:%.*s/../../cuda_nvrtc/lib:%.*s/../../cublas/lib%s%s", folder, library,
             XMEM_CUDA_MAJOR, folder, library, folder, library, path && *path ? ":" : "", path ? path : "");
    snprintf(program, sizeof program, "libcudart.so.%d", XMEM_CUDA_MAJOR);
    if (!cudnn_path_beside(runtime, sizeof runtime, program) ||
        !cudnn_path_beside(driver, sizeof driver, "libcuda.so.1") ||
        !cudnn_path_beside(program, sizeof program, HELPER))
        return 0;
    char *const arguments[] = {program, (char *)library, runtime, driver, NULL};
    char *const environment[] = {libraries, *cudnn_tf32() ? (char *)cudnn_tf32() : NULL, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, theirs, STDIN_FILENO);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    pid_t child;
    int failed = posix_spawn(&child, program, &files, &attributes, arguments, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    if (!failed)
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
            ;
    return !failed;
}

/* A running helper of our own, that still listens. Its first words are its number and the version of the library. */
static int have_helper(const char *library, double seconds) {
    struct pollfd gone = {.fd = helper, .events = POLLIN};
    if (helper >= 0 && owner == getpid() && poll(&gone, 1, 0) == 0)
        return 1;
    hang_up();
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        return 0;
    helper = ends[0];
    owner = getpid();
    number = 0;
    int started = spawn(ends[1], library);
    close(ends[1]);
    char *words = started ? receive(seconds, (Account){0, 0}) : NULL;
    const char *line = words ? strchr(words, '\n') : NULL;
    int version = line ? atoi(line + 1) : 0;
    free(words);
    if (version == XMEM_CUDNN_VERSION)
        return 1;
    if (line) {
        failures = MAX_FAILURES;
        cudnn_no(version ? "the cuDNN library beside torch is of another version than torch's"
                         : "the cuDNN library beside torch could not be loaded");
    }
    hang_up();
    return 0;
}

/* What an answer has cost, or that there was none, of `seconds` that it had. */
static double spent_on(const char *answer, Account before, double passed, double seconds) {
    Account after = account();
    if (!answer)
        return passed < seconds ? passed : seconds;
    if (after.ran == 0)
        return passed;
    return after.ran < before.ran ? after.ran : after.ran - before.ran; /* it may be another helper's account */
}

char *cudnn_ask_helper(const char *library, const char *question) {
    if (!allowed) {
        const char *deadline = getenv("XMEM_DEADLINE"), *budget = getenv("XMEM_CPU_SECONDS");
        double left = deadline ? strtod(deadline, NULL) - now() : 3 * SECONDS_WITHOUT_DEADLINE;
        double seconds = budget ? strtod(budget, NULL) : left;
        allowed = (seconds < left ? seconds : left) / 3;
    }
    if (spent >= allowed)
        return cudnn_no(CUDNN_OUT_OF_TIME);
    if (failures >= MAX_FAILURES)
        return NULL;
    cudnn_no("cuDNN gave no answer");
    double started = now(), seconds = allowed - spent < ANSWER_SECONDS ? allowed - spent : ANSWER_SECONDS;
    Account before = account();
    char *answer = NULL;
    for (int again = 1; again && !answer;) {
        again = helper >= 0; /* it answered before, and may be ending, as nobody asked it for a while */
        int listens = have_helper(library, seconds);
        Account unasked = account();
        answer = listens && say(question) ? receive(seconds, unasked) : NULL;
        if (!answer)
            hang_up();
    }
    spent += spent_on(answer, before, now() - started, seconds);
    failures += !answer;
    return answer;
}
