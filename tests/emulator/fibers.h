// The threads of a block as fibers of one thread of the host: each runs until it waits for others
// or ends, and the next that can run goes on in its place.
#include <sched.h>
#include <setjmp.h>
#include <stddef.h>
#include <time.h>
#include <ucontext.h>

namespace emulated {

enum State : unsigned char { READY, AT_WARP, AT_BLOCK, POLLING, ENDED };

constexpr int MOST_THREADS = 1024;
// No multiple of a page: the tops of stacks would share few lines of the cache.
constexpr size_t STACK = (256 << 10) + 4096 + 192;

#if defined(__x86_64__)

// Saves what a function must keep and where it was, and goes on at another such place. setjmp and
// longjmp take several times as long.
extern "C" __attribute__((visibility("hidden"))) void emulated_switch(void** from, void* to);
asm(R"(
    .text
    .hidden emulated_switch
    .globl emulated_switch
    .type emulated_switch, @function
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulated_switch, .-emulated_switch
)");

struct Place {
    void* top;

    // `entry` is entered as after a call: its stack is 8 bytes off a multiple of 16.
    void begin(char* stack, void (*entry)()) {
        void** words = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + STACK) & -16);
        words[-1] = nullptr;
        words[-2] = reinterpret_cast<void*>(entry);
        top = words - 8;
    }
    void leave_for(Place& other) { emulated_switch(&top, other.top); }
};

#else

struct Place {
    jmp_buf held;
    ucontext_t first;
    bool begun;

    void begin(char* stack, void (*entry)()) {
        getcontext(&first);
        first.uc_stack.ss_sp = stack;
        first.uc_stack.ss_size = STACK;
        first.uc_link = nullptr;
        makecontext(&first, entry, 0);
        begun = false;
    }
    void leave_for(Place& other) {
        begun = true;
        if (_setjmp(held) != 0) return;
        if (other.begun) _longjmp(other.held, 1);
        setcontext(&other.first);
    }
};

#endif

struct Fiber {
    Place place;
    State state;
    const void* site;
    unsigned long long polled;
};

static Fiber fibers[MOST_THREADS];
static Place scheduler;
static int current, threads, last_to_run;
static unsigned arrived;
static char* stacks;

}  // namespace emulated

struct EmulatedIndex {
    unsigned x, y, z;
};
static EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace emulated {

// Null where there is none before `last_to_run`.
inline Place* next_to_run(int thread) {
    while (thread < last_to_run && fibers[thread].state != READY) ++thread;
    if (thread >= last_to_run) return nullptr;
    current = thread;
    threadIdx = {static_cast<unsigned>(thread), 0, 0};
    return &fibers[thread].place;
}

inline void leave(State state, const void* site) {
    Fiber& own = fibers[current];
    own.state = state;
    own.site = site;
    Place* next = next_to_run(current + 1);
    own.place.leave_for(next == nullptr ? scheduler : *next);
}

// Lets each of the threads first ... last - 1 that can run do so, until it waits or ends.
inline void run(int first, int last) {
    last_to_run = last;
    if (Place* next = next_to_run(first)) scheduler.leave_for(*next);
}

// Lets the threads first ... last - 1 that wait for `state` go on, once all that live do, and at the
// same place. False where some wait for something else.
inline bool release(int first, int last, State state) {
    const void* site = nullptr;
    bool any = false;
    for (int thread = first; thread < last; ++thread) {
        const Fiber& fiber = fibers[thread];
        if (fiber.state == ENDED) continue;
        if (fiber.state != state || (any && fiber.site != site)) return false;
        site = fiber.site;
        any = true;
    }
    if (!any) return false;
    for (int thread = first; thread < last; ++thread) {
        if (fibers[thread].state == state) fibers[thread].state = READY;
    }
    run(first, last);
    return true;
}

// Called before each look at a place that other devices write. Whoever looks again waits, while the
// other threads go on: what those have to say may be what the others wait for.
inline void poll(unsigned long long at) {
    Fiber& own = fibers[current];
    if (own.polled != at) {
        own.polled = at;
        ++arrived;
    } else {
        leave(POLLING, nullptr);
    }
}

// Lets those that poll look again, for the `idle`th time in vain. Another device may need this
// processor. Rests are few, since each takes long where many want it: a kernel that is called off
// notices at its 1,024th look.
inline void look_again(unsigned idle) {
    if (idle > 1024 && idle % 64 == 0) {
        const timespec pause = {0, 100000};
        nanosleep(&pause, nullptr);
    } else if (idle % 256 == 0) {
        sched_yield();
    }
    for (int thread = 0; thread < threads; ++thread) {
        if (fibers[thread].state == POLLING) fibers[thread].state = READY;
    }
    run(0, threads);
}

// One block, each of its threads from `entry` on. False where they wait for one another for ever.
inline bool run_threads(void (*entry)()) {
    for (int thread = 0; thread < threads; ++thread) {
        fibers[thread].state = READY;
        fibers[thread].polled = 0;
        fibers[thread].place.begin(stacks + static_cast<size_t>(thread) * STACK, entry);
    }
    run(0, threads);
    for (unsigned idle = 1;; ++idle) {
        bool moved = false, live = false, polls = false;
        const unsigned before = arrived;
        for (int first = 0; first < threads; first += 32) {
            const int last = first + 32 < threads ? first + 32 : threads;
            // Exchanges inside a warp are many: it runs until it ends or waits for the block.
            while (release(first, last, AT_WARP)) moved = true;
            for (int thread = first; thread < last; ++thread) {
                live |= fibers[thread].state != ENDED;
                polls |= fibers[thread].state == POLLING;
            }
        }
        if (!live) return true;
        if (!release(0, threads, AT_BLOCK)) {
            if (!moved && !polls) return false;
            if (polls) look_again(idle);
        }
        if (moved || arrived != before) idle = 0;
    }
}

}  // namespace emulated
