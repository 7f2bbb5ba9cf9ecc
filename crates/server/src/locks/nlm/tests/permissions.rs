//! Whose locks a host gets, before a restart of the server and when it reclaims them after one: users need to own the
//! file, or any right to read or write it, as the kernel says. The server does not remember who had which lock.

use super::*;
use crate::export::{ClientAccess, ClientRule};
use crate::kernel_rights::{Change, MayOpen, OWNER, USERS, User, set_mode};
use std::os::unix::fs::chown;
use weir_vfs::Capabilities;

impl Fixture {
    async fn lock_of(&self, name: &str, user: User) -> nlm::Lock {
        let found = self.fs.lookup(&Caller::Own, self.fs.root().entry(name.as_bytes())).await;
        let node = Node { id: found.unwrap().id, ..self.file };
        let file = Opaque::copy_from(&Handles::open(self.dir.path()).unwrap().seal(node));
        let process = user.uid as i32;
        nlm::Lock { file, ..self.lock(process, user.uid.into(), 1) }
    }

    /// The answers to a lock and a reservation.
    async fn ask(&self, host: &Host, lock: nlm::Lock, user: User, reclaim: bool) -> [Status; 2] {
        let nlm::Lock { caller, file, owner, .. } = lock.clone();
        let (cookie, block, exclusive) = ("c".into(), false, true);
        let args = LockArgs { cookie, block, exclusive, lock, reclaim, state: 1 };
        let auth = AuthSys { uid: user.uid, gid: user.gid, ..AuthSys::default() };
        let client = connect(self.addr, host.ip).await;
        let mut client = client.with_cred(OpaqueAuth::from(&auth));
        let procedure = nlm::Procedure::Lock as u32;
        let locked: Res = client.call(nlm::ID, procedure, &args).await.unwrap();
        let (mode, access) = (ShareMode::None, ShareAccess::Read);
        let share = Share { caller, file, owner, mode, access };
        let args = ShareArgs { cookie: "s".into(), share, reclaim };
        let procedure = nlm::Procedure::Share as u32;
        let shared: nlm::ShareRes = client.call(nlm::ID, procedure, &args).await.unwrap();
        [locked.status, shared.status]
    }
}

#[tokio::test]
async fn hosts_lock_and_reclaim_what_their_users_may_use() {
    if !weir_skip::is_root("it runs processes of several users") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    set_mode(dir.path(), 0o755);
    let store = LocalFs::open(dir.path(), LocalOptions::default()).unwrap();
    let has_lists = store.capabilities().contains(Capabilities::POSIX_ACL);
    let changes = Change::all(has_lists);
    let mut f = Fixture::of(store, false, u16::MAX).await;
    f.grace = Duration::from_secs(3600);
    let host = f.host(1).await;
    let path = |name: &str| dir.path().join(name);
    let names: Vec<String> = (0..changes.len()).map(|at| format!("file-{at}")).collect();
    for name in &names {
        std::fs::write(path(name), "bytes").unwrap();
        chown(path(name), Some(OWNER), Some(OWNER)).unwrap();
        set_mode(&path(name), 0o666);
        for user in USERS {
            let lock = f.lock_of(name, user).await;
            assert_eq!(f.ask(&host, lock, user, false).await, [Status::Granted; 2]);
        }
    }
    f.stop().await;
    f.start().await;
    let mut wrong = Vec::new();
    for (name, change) in names.iter().zip(changes) {
        change.make(&path(name));
        for user in USERS {
            let may = MayOpen::ask(&path(name), user);
            let may = may.allows(Access::READ) || may.allows(Access::WRITE);
            let may = may || user.uid == change.owner;
            let expected = if may { Status::Granted } else { Status::Failed };
            let got = f.ask(&host, f.lock_of(name, user).await, user, true).await;
            if got != [expected; 2] {
                wrong.push(format!("{change:?}, {user:?}: {got:?}, not {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

/// NLM has no leases, so a lock that its host cannot release stays until the host restarts.
#[tokio::test]
async fn a_host_releases_its_lock_after_its_last_export_was_closed_to_it() {
    let f = Fixture::new().await;
    let (a, b) = (f.host(1).await, f.host(2).await);
    assert_eq!(f.take(&a, f.lock(1, 0, 10), EXCLUSIVE).await, Status::Granted);
    let network = "127.0.77.2".parse().unwrap();
    let rule = ClientRule { network, access: ClientAccess::ReadWrite, squash: None };
    let options =
        ExportOptions { squash: Squash::Nobody, clients: vec![rule], ..ExportOptions::default() };
    let export = Export { path: "/".into(), source: "/".into(), fs: f.fs.clone(), options };
    f.server.as_ref().unwrap().set_exports(vec![export]).unwrap();
    assert_eq!(f.take(&b, f.lock(1, 0, 10), EXCLUSIVE).await, Status::Denied);
    assert_eq!(f.release(&a, f.lock(1, 0, 10)).await, Status::Granted);
    assert_eq!(f.take(&b, f.lock(1, 0, 10), EXCLUSIVE).await, Status::Granted);
}
