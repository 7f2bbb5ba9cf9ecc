//! The database of clients' records cannot be written.

use super::*;

/// Linux's lock manager gives a lock up if its reclaim is answered DENIED_GRACE_PERIOD.
#[tokio::test]
async fn a_reclaim_waits_for_a_record() {
    let mut f = Fixture::new().await;
    let (a, c) = (f.host(1).await, f.host(3).await);
    assert_eq!(f.take(&a, f.lock(1, 0, 0), EXCLUSIVE).await, Status::Granted);
    f.stop().await;
    f.start().await;
    let services = &f.server.as_ref().unwrap().services;
    let owner = crate::state::Owner { sessions: true, name: "another".into() };
    services.state.lock().is_to_be_written(owner);
    crate::storage::recovery::tests::fill_disk(&services.recovery);
    assert_eq!(f.take(&a, f.lock(1, 0, 0), RECLAIM).await, Status::Granted);
    // It had no lock.
    assert_eq!(f.take(&c, f.lock(1, 500, 1), RECLAIM).await, Status::DeniedGracePeriod);
}

#[tokio::test]
async fn a_host_that_is_refused_for_want_of_a_record_holds_nothing() {
    let f = Fixture::new().await;
    let (a, b) = (f.host(1).await, f.host(2).await);
    let services = &f.server.as_ref().unwrap().services;
    // They are on disk already.
    for host in [&a, &b] {
        assert_eq!(f.take(host, f.lock(9, 500, 1), SHARED).await, Status::Granted);
    }
    let share = |process: i32| {
        let owner = format!("{process}@host").as_str().into();
        let (access, mode) = (ShareAccess::Write, ShareMode::Both);
        let share = Share { caller: "host".into(), file: f.handle(), owner, mode, access };
        ShareArgs { cookie: "s".into(), share, reclaim: false }
    };
    let due = || {
        let owner = crate::state::Owner { sessions: true, name: "another".into() };
        services.state.lock().is_to_be_written(owner);
        crate::storage::recovery::tests::fill_disk(&services.recovery);
    };
    due();
    assert_eq!(f.take(&a, f.lock(1, 0, 100), EXCLUSIVE).await, Status::DeniedGracePeriod);
    due();
    assert_eq!(f.call::<call::Share>(&a, &share(1)).await.status, Status::DeniedGracePeriod);
    assert_eq!(f.take(&b, f.lock(1, 0, 100), EXCLUSIVE).await, Status::Granted);
    assert_eq!(f.call::<call::Share>(&b, &share(1)).await.status, Status::Granted);
    assert!(!services.state.lock().has_unwritten());
    let c = f.host(3).await;
    crate::storage::recovery::tests::fill_disk(&services.recovery);
    assert_eq!(f.take(&c, f.lock(1, 500, 1), SHARED).await, Status::DeniedGracePeriod);
    assert_eq!(f.take(&c, f.lock(1, 500, 1), SHARED).await, Status::Granted);
}
