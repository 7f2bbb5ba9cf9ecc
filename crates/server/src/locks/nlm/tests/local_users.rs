//! Users of the server's own machine, which call for themselves from any port. Only the superuser
//! can create sockets of other users. Without that right these tests skip.

use super::*;
use std::os::fd::AsFd;

/// Changes the owner of a socket; `false` if this process may not.
fn give(socket: impl AsFd, uid: u32) -> bool {
    let owner = rustix::process::Uid::from_raw(uid);
    rustix::process::geteuid().is_root() && rustix::fs::fchown(socket, Some(owner), None).is_ok()
}

/// A connection of a user from a host's address; `None` if this process may not create one, which
/// it reports.
async fn connect(f: &Fixture, ip: IpAddr, uid: u32) -> Option<RpcClient> {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(ip, 0)).unwrap();
    if !give(&socket, uid) {
        weir_skip::skip("only the superuser makes sockets of other users");
        return None;
    }
    let stream = socket.connect(f.addr).await.unwrap();
    let auth = AuthSys { uid, gid: uid, ..AuthSys::default() };
    Some(RpcClient::over(stream, LIMITS).with_cred(OpaqueAuth::from(&auth)))
}

async fn call<C: nlm::Call>(client: &mut RpcClient, args: &C::Args) -> C::Res
where
    C::Args: Sync,
{
    client.call(nlm::ID, C::PROCEDURE as u32, args).await.unwrap()
}

async fn take(client: &mut RpcClient, lock: nlm::Lock) -> Status {
    take_or_wait(client, lock, false).await
}

async fn take_or_wait(client: &mut RpcClient, lock: nlm::Lock, block: bool) -> Status {
    let (cookie, exclusive, reclaim) = ("c".into(), true, false);
    let args = LockArgs { cookie, block, exclusive, lock, reclaim, state: 1 };
    call::<call::Lock>(client, &args).await.status
}

async fn release(client: &mut RpcClient, lock: nlm::Lock) -> Status {
    call::<call::Unlock>(client, &UnlockArgs { cookie: "u".into(), lock }).await.status
}

/// A server with a file that all users may write.
async fn shared_file() -> Fixture {
    let f = Fixture::new().await;
    let set = SetAttr { mode: Some(0o666), ..SetAttr::default() };
    f.fs.setattr(&Caller::Own, f.file.id, &set).await.unwrap();
    f
}

#[tokio::test]
async fn local_users_cannot_free_locks_of_others() {
    let f = shared_file().await;
    let host = f.host(1).await;
    let Some(mut a) = connect(&f, host.ip, 1001).await else { return };
    let mut b = connect(&f, host.ip, 1002).await.unwrap();
    let lock = || f.lock(1, 0, 10);
    assert_eq!(take(&mut a, lock()).await, Status::Granted);
    // The same owner name from another user.
    assert_eq!(take(&mut b, lock()).await, Status::Denied);
    assert_eq!(release(&mut b, lock()).await, Status::Granted, "of what it does not hold");
    assert_eq!(f.release(&host, lock()).await, Status::Granted);
    assert_eq!(take(&mut b, lock()).await, Status::Denied);
    // Another connection of the same user is the same owner.
    let mut again = connect(&f, host.ip, 1001).await.unwrap();
    assert_eq!(release(&mut again, lock()).await, Status::Granted);
    assert_eq!(take(&mut b, lock()).await, Status::Granted);
}

#[tokio::test]
async fn a_conflicting_lock_of_a_local_user_is_denied_without_waiting() {
    let f = shared_file().await;
    let (mut host, other) = (f.host(1).await, f.host(2).await);
    let Some(mut a) = connect(&f, host.ip, 1001).await else { return };
    let mut b = connect(&f, host.ip, 1002).await.unwrap();
    let lock = || f.lock(1, 0, 10);
    assert_eq!(take(&mut a, lock()).await, Status::Granted);
    assert_eq!(take_or_wait(&mut b, lock(), true).await, Status::Denied);
    // The machine's superuser may wait.
    assert_eq!(f.take(&host, lock(), WAIT).await, Status::Blocked);
    assert_eq!(release(&mut a, lock()).await, Status::Granted);
    assert!(matches!(host.news().await, Told::Granted(_)));
    assert_eq!(f.release(&host, lock()).await, Status::Granted);
    assert_eq!(f.take(&other, lock(), EXCLUSIVE).await, Status::Granted, "no user is in line");
}

#[tokio::test]
async fn local_users_cannot_report_a_restart_of_the_machine() {
    // Notices are accepted from any port, as on machines where users may bind all ports.
    let f = shared_file().await;
    let mut host = f.host(1).await;
    assert_eq!(f.take(&host, f.lock(1, 0, 10), EXCLUSIVE).await, Status::Granted);
    asked(&mut host).await;
    f.knows(&host, Some(3)).await;
    let Some(mut user) = connect(&f, host.ip, 1001).await else { return };
    let change = nsm::StatChange { name: "host".into(), state: 5 };
    user.call::<()>(nsm::ID, nsm::Procedure::Notify as u32, &change).await.unwrap();
    call::<call::FreeAll>(&mut user, &Notify { name: "host".into(), state: 5 }).await;
    assert_eq!(take(&mut user, f.lock(1, 0, 10)).await, Status::Denied);

    // Nor by datagram: the server does not query the host, which may still take locks.
    let socket = UdpSocket::bind(SocketAddr::new(host.ip, 0)).await.unwrap();
    assert!(give(&socket, 1001));
    host.run.store(5, Ordering::Relaxed);
    send_notice(&f, &socket, 5).await;
    assert!(!f.server.as_ref().unwrap().monitor.is_asking(host.ip));
    assert_eq!(take(&mut user, f.lock(1, 0, 10)).await, Status::Denied);
    // The superuser's notice is accepted.
    notify_by_datagram(&f, &host, 5).await;
    asked(&mut host).await;
    f.knows(&host, Some(5)).await;
    assert_eq!(take(&mut user, f.lock(1, 0, 10)).await, Status::Granted);
}
