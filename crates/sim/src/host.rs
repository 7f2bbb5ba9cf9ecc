//! The clock and the entropy of this process, in the place of the machine's.
//!
//! Std, tokio and every crate ask the C library for the time and for random bytes. The functions below
//! have the names of the library's, so the linker takes them: while a simulation runs, the time is that
//! of the runtime's paused clock, and the bytes come from the seed. So no code under test needs a
//! parameter for either, and no code can be forgotten.
//!
//! 1. The process has one thread while it simulates, and runs one simulation in its life.
//! 2. Before [`begin`], the machine's clock and entropy answer.
//!
//! Sound because the functions write to what the C library's contract lets them write to, and to nothing
//! else.

#![allow(unsafe_code, reason = "functions of the C library are replaced")]
#![allow(unreachable_pub, reason = "the linker reaches them")]

use libc::{c_int, c_uint, c_void, clockid_t, size_t, ssize_t, timespec};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

static SIMULATED: AtomicBool = AtomicBool::new(false);
/// Nanoseconds since the simulation began.
static NOW: AtomicU64 = AtomicU64::new(0);
static ENTROPY: AtomicU64 = AtomicU64::new(0);

/// What the monotonic clock says when the simulation begins, in seconds.
const BOOTED: u64 = 1000;
/// What the wall clock says then, in seconds since 1970.
const WALL: u64 = 1_700_000_000;

/// From here on, time stands still until [`set_now`], and random bytes come from `seed`.
pub(crate) fn begin(seed: u64) {
    ENTROPY.store(seed, SeqCst);
    SIMULATED.store(true, SeqCst);
}

/// Sets the time since the simulation began.
pub(crate) fn set_now(now: Duration) {
    NOW.store(now.as_nanos() as u64, SeqCst);
}

/// The time since the simulation began.
pub(crate) fn now() -> Duration {
    Duration::from_nanos(NOW.load(SeqCst))
}

fn next_entropy() -> u64 {
    let mut random = weir_stores::random::Random::new(ENTROPY.load(SeqCst));
    let number = random.number();
    ENTROPY.store(number, SeqCst);
    number
}

/// `clock_gettime(3)`.
///
/// # Safety
/// As the C library's: `time` points to a `timespec`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    if !SIMULATED.load(SeqCst) {
        // SAFETY: the caller's promise.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as c_int;
    }
    let base = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => WALL,
        _ => BOOTED,
    };
    let now = Duration::from_secs(base) + now();
    // SAFETY: the caller's promise.
    unsafe {
        (*time).tv_sec = now.as_secs() as libc::time_t;
        (*time).tv_nsec = now.subsec_nanos().into();
    }
    0
}

/// `getrandom(2)`.
///
/// # Safety
/// As the C library's: `buffer` points to `len` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, len: size_t, flags: c_uint) -> ssize_t {
    if !SIMULATED.load(SeqCst) {
        // SAFETY: the caller's promise.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, len, flags) } as ssize_t;
    }
    let bytes = buffer.cast::<u8>();
    for at in 0..len {
        // SAFETY: below `len`, by the caller's promise.
        unsafe { bytes.add(at).write(next_entropy() as u8) };
    }
    len as ssize_t
}
