//! The only module through which synchronisation primitives come in.
//!
//! Ordinary builds get `std` atomics and `parking_lot` locks. Under `--cfg loom` or `--cfg shuttle`
//! the same names are the model checker's, so that the shipped code itself is checked.

#[cfg(not(any(loom, shuttle)))]
mod imp {
    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    pub use std::sync::Arc;
    pub use std::sync::atomic;
    pub use std::thread;
    pub use std::thread_local;

    /// A static whose value the model checkers reinitialise for each execution.
    #[macro_export]
    #[doc(hidden)]
    macro_rules! __lazy_global {
        (static $name:ident: $type:ty = $value:expr;) => {
            static $name: $type = $value;
        };
    }
    pub use crate::__lazy_global as lazy_global;
}

#[cfg(any(loom, shuttle))]
mod imp {
    #[cfg(loom)]
    pub use loom::{lazy_static, sync::Arc, sync::atomic, thread, thread_local};
    #[cfg(shuttle)]
    pub use shuttle::{lazy_static, sync::Arc, sync::atomic, thread, thread_local};

    /// A static whose value the model checkers reinitialise for each execution.
    #[macro_export]
    #[doc(hidden)]
    macro_rules! __lazy_global {
        (static $name:ident: $type:ty = $value:expr;) => {
            $crate::sync::lazy_static! { static ref $name: $type = $value; }
        };
    }
    pub use crate::__lazy_global as lazy_global;

    #[cfg(loom)]
    use loom::sync as checked;
    #[cfg(shuttle)]
    use shuttle::sync as checked;

    pub use checked::{RwLockReadGuard, RwLockWriteGuard};
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    const POISONED: &str = "a model-checked thread panicked";
    const WAITING: &str = "only a condition variable takes the guard out, and puts it back";

    /// A mutex with `parking_lot`'s interface over the model checker's.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(checked::Mutex<T>);

    /// Access to the data of a [`Mutex`].
    pub struct MutexGuard<'a, T>(Option<checked::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        /// A mutex around `value`.
        pub fn new(value: T) -> Self {
            Self(checked::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect(POISONED)))
        }

        /// Takes the lock if it is free.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect(WAITING)
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect(WAITING)
        }
    }

    /// A read-write lock with `parking_lot`'s interface over the model checker's.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(checked::RwLock<T>);

    impl<T> RwLock<T> {
        /// A lock around `value`.
        pub fn new(value: T) -> Self {
            Self(checked::RwLock::new(value))
        }

        /// Waits to share the lock.
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect(POISONED)
        }

        /// Waits to own the lock.
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect(POISONED)
        }
    }

    /// A condition variable for [`Mutex`].
    #[derive(Debug, Default)]
    pub struct Condvar(checked::Condvar);

    impl Condvar {
        /// A condition variable without waiters.
        pub fn new() -> Self {
            Self(checked::Condvar::new())
        }

        /// Waits for a notification, with the lock released meanwhile.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let inner = guard.0.take().expect(WAITING);
            guard.0 = Some(self.0.wait(inner).expect(POISONED));
        }

        /// Like [`wait`](Self::wait); in a model time stands still, so the limit never expires.
        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _at_most: Duration) {
            self.wait(guard);
        }

        /// Wakes one waiter.
        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        /// Wakes every waiter.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

pub use imp::*;
