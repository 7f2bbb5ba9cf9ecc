//! Requests that wait in the server while their host releases what they ask for. They wait for the record of the
//! host, because the database is blocked.

use super::*;

impl Fixture {
    /// Makes a request of a host, and `release` while it waits. Returns its answer.
    async fn overtaken<T>(
        &self,
        host: &Host,
        request: impl Future<Output = T>,
        release: impl Future<Output = ()>,
    ) -> T {
        let server = self.server.as_ref().unwrap();
        let held = server.services.recovery.hold();
        let release = async {
            while !server.monitor.has_requests_of(host.ip) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            release.await;
            drop(held);
        };
        let both = async { tokio::join!(request, release) };
        timeout(Duration::from_secs(120), both).await.unwrap().0
    }

    async fn cancel(&self, host: &Host, lock: nlm::Lock) -> Status {
        let args = CancelArgs { cookie: "x".into(), block: true, exclusive: true, lock };
        self.call::<call::Cancel>(host, &args).await.status
    }
}

/// A process is killed while it waits for a lock, and its kernel releases the lock.
#[tokio::test]
async fn a_lock_whose_release_overtakes_it_is_not_taken() {
    let f = Fixture::new().await;
    let (a, b, c) = (f.host(1).await, f.host(2).await, f.host(3).await);
    let released = f.overtaken(&a, f.take(&a, f.lock(1, 10, 10), EXCLUSIVE), async {
        assert_eq!(f.release(&a, f.lock(1, 19, 0)).await, Status::Granted);
    });
    assert_eq!(released.await, Status::DeniedGracePeriod);
    let cancelled = f.overtaken(&b, f.take(&b, f.lock(1, 10, 10), WAIT), async {
        assert_eq!(f.cancel(&b, f.lock(1, 10, 10)).await, Status::Granted);
    });
    assert_eq!(cancelled.await, Status::DeniedGracePeriod);
    let freed = f.overtaken(&c, f.take(&c, f.lock(1, 10, 10), EXCLUSIVE), async {
        let all = Notify { name: "host".into(), state: 3 };
        f.call::<call::FreeAll>(&c, &all).await;
    });
    assert_eq!(freed.await, Status::DeniedGracePeriod);
    let d = f.host(4).await;
    assert_eq!(f.take(&d, f.lock(1, 0, 0), EXCLUSIVE).await, Status::Granted);
    // Later requests are not affected.
    assert_eq!(f.take(&a, f.lock(1, 0, 0), EXCLUSIVE).await, Status::Denied);
    f.release(&d, f.lock(1, 0, 0)).await;
    assert_eq!(f.take(&a, f.lock(1, 10, 10), EXCLUSIVE).await, Status::Granted);
}

#[tokio::test]
async fn a_release_ends_no_request_for_other_bytes_or_owners() {
    let f = Fixture::new().await;
    let (a, b) = (f.host(1).await, f.host(2).await);
    let taken = f.overtaken(&a, f.take(&a, f.lock(1, 10, 10), EXCLUSIVE), async {
        assert_eq!(f.release(&a, f.lock(1, 0, 10)).await, Status::Granted);
        assert_eq!(f.release(&a, f.lock(1, 20, 0)).await, Status::Granted);
        assert_eq!(f.release(&a, f.lock(2, 0, 0)).await, Status::Granted);
        assert_eq!(f.release(&b, f.lock(1, 0, 0)).await, Status::Granted);
        assert_eq!(f.cancel(&a, f.lock(1, 10, 9)).await, Status::Granted);
    });
    assert_eq!(taken.await, Status::Granted);
    assert_eq!(f.take(&b, f.lock(1, 0, 0), SHARED).await, Status::Denied);
}

#[tokio::test]
async fn a_share_reservation_whose_release_overtakes_it_is_not_taken() {
    let f = Fixture::new().await;
    let (a, b) = (f.host(1).await, f.host(2).await);
    let (access, mode) = (ShareAccess::Write, ShareMode::Both);
    let share = Share { caller: "host".into(), file: f.handle(), owner: "o".into(), mode, access };
    let share = ShareArgs { cookie: "s".into(), share, reclaim: false };
    let asked = f.overtaken(&a, f.call::<call::Share>(&a, &share), async {
        assert_eq!(f.call::<call::Unshare>(&a, &share).await.status, Status::Granted);
    });
    assert_eq!(asked.await.status, Status::DeniedGracePeriod);
    assert_eq!(f.call::<call::Share>(&b, &share).await.status, Status::Granted);
}
