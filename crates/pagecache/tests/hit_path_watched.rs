//! I6 as the kernel and the processor see it: resident reads in a child process that has only the
//! reading thread, where every system call kills it, or every write to memory is recorded.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use common::{Rig, write_all};
use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};
use weir_pagecache::File;
use weir_vfs::IoFlags;

/// Bytes of the file that is read, all of them resident.
const FILE_BYTES: usize = 2 << 20;
const PAGE: usize = 4096;
/// Size of a cache line in bytes.
const LINE: usize = 64;

/// Shared by the reading child and its parent. Contains the buffer, too, as the pages of the
/// readers' own memory are not watched.
struct Log {
    len: AtomicUsize,
    /// Distinct lines that were written to.
    lines: [AtomicUsize; 4096],
    /// Pages that are writable until the current instruction is done.
    open: [AtomicUsize; 4],
    buf: [u8; 64 << 10],
}

static LOG: AtomicPtr<Log> = AtomicPtr::new(std::ptr::null_mut());

#[test]
fn i6_a_hit_makes_no_system_call() {
    let (_rig, file) = resident_file();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let log = shared_log();
            read_all_ways(&file, log);
            let reads = in_child(|| {
                forbid_system_calls();
                read_all_ways(&file, log);
            });
            if libc::WIFEXITED(reads) && libc::WEXITSTATUS(reads) == REFUSED {
                weir_skip::skip("this system has no seccomp filters");
                return;
            }
            assert!(libc::WIFEXITED(reads), "ended by signal {}", libc::WTERMSIG(reads));
            assert_eq!(libc::WEXITSTATUS(reads), 0);
            let other = in_child(|| {
                forbid_system_calls();
                // SAFETY: has no arguments.
                unsafe { libc::getppid() };
            });
            assert!(libc::WIFSIGNALED(other) && libc::WTERMSIG(other) == libc::SIGSYS, "{other}");
        });
    });
}

#[test]
fn i6_a_hit_writes_no_line_that_another_threads_hit_writes() {
    let (rig, file) = resident_file();
    let [one, two] = lines_of_two_readers(&file);
    println!("{} and {} lines written", one.len(), two.len());
    // Its epoch line, and its counters: otherwise nothing was watched.
    assert!(one.len() >= 2 && two.len() >= 2, "{one:x?} {two:x?}");
    assert!(one.is_disjoint(&two), "both write {:x?}", &one & &two);
    // The slow path takes the file's lock.
    rig.cache.set_fast_read(false);
    let [one, two] = lines_of_two_readers(&file);
    assert!(!one.is_disjoint(&two), "a lock is noted");
}

fn resident_file() -> (Rig, File) {
    let rig = Rig::new(1024);
    let file = rig.create("f");
    write_all(&file, &vec![1; FILE_BYTES], 0);
    file.sync(true).unwrap();
    (rig, file)
}

/// Reads of several lengths, cached and uncached. Callable where only reading works.
fn read_all_ways(file: &File, log: *mut Log) {
    // SAFETY: one thread at a time has this log.
    let buf = unsafe { &mut (*log).buf };
    for flags in [IoFlags::empty(), IoFlags::UNCACHED, IoFlags::NOWAIT, IoFlags::HIPRI] {
        for len in [1, 512, PAGE, buf.len()] {
            for n in 0..10 {
                let done = file.read_at(&mut buf[..len], n * 100_000 + 7, flags);
                if done != Ok(len) || buf[..len].iter().any(|&byte| byte != 1) {
                    // SAFETY: ends the process.
                    unsafe { libc::_exit(1) };
                }
            }
        }
    }
}

/// The lines that each of two threads' hits write to.
fn lines_of_two_readers(file: &File) -> [BTreeSet<usize>; 2] {
    let barrier = Barrier::new(2);
    let watch = || {
        let log = shared_log();
        // Registers the thread, whose registration lasts until the other one is done, too.
        read_all_ways(file, log);
        let memory = writable_memory();
        barrier.wait();
        let ended = in_child(|| {
            watch_writes(&memory, log);
            read_all_ways(file, log);
        });
        barrier.wait();
        assert_eq!(ended, 0);
        // SAFETY: mapped by `shared_log`, and the child is gone.
        let log = unsafe { &*log };
        log.lines[..log.len.load(Relaxed)].iter().map(|line| line.load(Relaxed)).collect()
    };
    std::thread::scope(|scope| {
        [scope.spawn(watch), scope.spawn(watch)].map(|thread| thread.join().unwrap())
    })
}

/// Memory that stays shared with children.
fn shared_log() -> *mut Log {
    let (access, how) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses; all zeros is a valid `Log`.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Log>(), access, how, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

/// Runs `work` in a copy of this process that has only this thread; returns the exit status.
fn in_child(work: impl FnOnce()) -> libc::c_int {
    // SAFETY: other threads may hold locks at this moment, so the child must take none of theirs:
    // it reads resident pages, makes system calls, and never returns.
    match unsafe { libc::fork() } {
        0 => {
            work();
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: our own child, and a place for its status.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}

/// Exit status of a child that may not filter its system calls.
const REFUSED: libc::c_int = 77;

/// From here on, any system call except exit ends the process.
fn forbid_system_calls() {
    let op = |code: u32, k: u32, jt: u8| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let mut filter = [
        // The number of the call.
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_exit_group as u32, 1),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS, 0),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its length belong together; the kernel copies it.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if refused {
        // SAFETY: ends the process.
        unsafe { libc::_exit(REFUSED) };
    }
}

/// The process's writable private memory, except this thread's stack and locals.
fn writable_memory() -> Vec<(usize, usize)> {
    let (mut stack, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: asks for the attributes of the running thread, and frees them.
    unsafe {
        let mut attr: libc::pthread_attr_t = std::mem::zeroed();
        assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), &raw mut attr), 0);
        assert_eq!(libc::pthread_attr_getstack(&raw const attr, &raw mut stack, &raw mut len), 0);
        libc::pthread_attr_destroy(&raw mut attr);
    }
    let own = stack as usize..stack as usize + len;
    let mut memory = Vec::new();
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let mut fields = line.split_whitespace();
        let (range, access) = (fields.next().unwrap(), fields.next().unwrap());
        if access != "rw-p" {
            continue;
        }
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).unwrap());
        memory.push((start, end.min(own.start)));
        memory.push((start.max(own.end), end));
    }
    memory.retain(|(start, end)| start < end);
    memory.sort_unstable();
    memory.dedup();
    memory
}

/// Records every line of `memory` that is written to: makes the memory read-only, and lets each
/// write through alone, for one instruction.
fn watch_writes(memory: &[(usize, usize)], log: *mut Log) {
    LOG.store(log, Relaxed);
    let handlers: [(_, extern "C" fn(_, _, _)); 2] =
        [(libc::SIGSEGV, on_write), (libc::SIGTRAP, on_step)];
    for (signal, handler) in handlers {
        // SAFETY: the handlers make one system call, and write to the log and the stack only.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
        }
    }
    for &(start, end) in memory {
        // SAFETY: removes a right that the handler restores for each write.
        unsafe { libc::mprotect(start as *mut _, end - start, libc::PROT_READ) };
    }
}

/// Bit of the flags register after which the processor stops at each instruction.
const STEP: i64 = 0x100;

extern "C" fn on_write(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: set by `watch_writes`; the kernel describes the fault and the interrupted thread.
    let (log, at, context) = unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        (&*LOG.load(Relaxed), (*info).si_addr() as usize, context)
    };
    let len = log.len.load(Relaxed);
    let known = log.lines[..len].iter().any(|line| line.load(Relaxed) == at / LINE);
    if !known && len < log.lines.len() {
        log.lines[len].store(at / LINE, Relaxed);
        log.len.store(len + 1, Relaxed);
    }
    let page = at & !(PAGE - 1);
    let slot = log.open.iter().find(|open| open.load(Relaxed) == 0);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a page that was writable before it was watched; for any other, mprotect fails.
    let opened = unsafe { libc::mprotect(page as *mut _, PAGE, access) } == 0;
    let Some(slot) = slot.filter(|_| opened && at != 0) else {
        // SAFETY: ends the process.
        unsafe { libc::_exit(2) }
    };
    slot.store(page, Relaxed);
    context.uc_mcontext.gregs[libc::REG_EFL as usize] |= STEP;
}

extern "C" fn on_step(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: as above.
    let (log, context) = unsafe { (&*LOG.load(Relaxed), &mut *context.cast::<libc::ucontext_t>()) };
    for open in &log.open {
        let page = open.swap(0, Relaxed);
        if page != 0 {
            // SAFETY: opened by `on_write`.
            unsafe { libc::mprotect(page as *mut _, PAGE, libc::PROT_READ) };
        }
    }
    context.uc_mcontext.gregs[libc::REG_EFL as usize] &= !STEP;
}
