//! What users may do by the modes and access control lists of files and directories: the answers of the server over
//! NFSv3 and 4.2, compared with those that the kernel gives a process of the same user.

use super::*;
use crate::export::Durability;
use crate::kernel_rights::Rights::{List, Mode};
use crate::kernel_rights::{
    FILE_MODES, LISTS, OTHER, OWNER, SQUASHED, USERS, User, answers, set_mode,
};
use std::fs;
use std::os::unix::fs::chown;
use weir_nfs::v3;
use weir_nfs::v3::op as op3;
use weir_nfs::v3::types::{DirOp, SetAttr, SetTime as SetTime3, Time};
use weir_nfs::v4::op::{access, close, create, link, readdir, rename, setattr};
use weir_nfs::v4::types::{NfsTime, SetTime};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_vfs::Capabilities;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    // On the file `dir/file`.
    OpenRead,
    OpenWrite,
    OpenBoth,
    Chmod,
    Chown,
    Chgrp,
    Truncate,
    TouchNow,
    TouchAt,
    MayRead,
    MayWrite,
    MayExecute,
    // In the directory `dir`.
    Lookup,
    Readdir,
    Create,
    Mkdir,
    Symlink,
    Link,
    Rename,
    Remove,
}

use Act::*;

const ON_FILE: [Act; 12] = [
    OpenRead, OpenWrite, OpenBoth, Chmod, Chown, Chgrp, Truncate, TouchNow, TouchAt, MayRead,
    MayWrite, MayExecute,
];
const IN_DIR: [Act; 8] = [Lookup, Readdir, Create, Mkdir, Symlink, Link, Rename, Remove];

const DIR_MODES: [u32; 10] = [0, 0o100, 0o300, 0o400, 0o500, 0o700, 0o730, 0o755, 0o777, 0o1777];

impl Act {
    /// The same for a shell, which is in the directory above `dir`.
    fn script(self) -> &'static str {
        match self {
            OpenRead => "exec 3<dir/file",
            OpenWrite => "exec 3>>dir/file",
            OpenBoth => "exec 3<>dir/file",
            Chmod => "chmod 600 dir/file",
            Chown => "chown 1001 dir/file",
            Chgrp => "chgrp $(id -g) dir/file",
            Truncate => "truncate -s 1 dir/file",
            TouchNow => "touch -c dir/file",
            TouchAt => "touch -c -d @1 dir/file",
            MayRead => "test -r dir/file",
            MayWrite => "test -w dir/file",
            MayExecute => "test -x dir/file",
            Lookup => "stat dir/file",
            Readdir => "ls -U dir",
            Create => "set -C; : > dir/new",
            Mkdir => "mkdir dir/new",
            Symlink => "ln -s x dir/new",
            Link => "ln mine dir/new",
            Rename => "mv -f dir/file dir/new",
            Remove => "rm -f dir/file",
        }
    }

    /// What NFS allows although the kernel refuses it, and why. `executes`: the kernel lets the user
    /// execute the file.
    fn is_allowed_by_nfs(self, minor: Option<u32>, uid: u32, executes: bool) -> bool {
        match (self, minor) {
            // A client reads a program to execute it (RFC 1813 section 4.4, RFC 8881 section 18.22.4).
            (OpenRead, _) if executes => true,
            // A client checks the mode when a program opens a file, and the owner may change the mode
            // after that. NFSv3 has no OPEN, so the owner may always read and write (RFC 1813 section
            // 4.4), and set the length, which programs do through open files.
            (OpenRead | OpenWrite | Truncate, None) => uid == OWNER,
            _ => false,
        }
    }
}

/// A directory with a file, in a directory of the export.
struct Trial<'a> {
    c: &'a mut Client,
    dir: FileHandle,
    file: FileHandle,
    mine: FileHandle,
    user: User,
}

async fn v3_call<C: v3::Call>(c: &mut Client, args: &C) -> C::Res {
    c.call_v3(C::PROCEDURE as u32, args).await
}

fn opaque3(file: &FileHandle) -> v3::types::FileHandle {
    weir_xdr::Opaque::copy_from(file)
}

impl<'a> Trial<'a> {
    /// Looks the files up, and calls as the user from then on.
    async fn begin(c: &'a mut Client, at: &Path, user: User) -> Self {
        let name = at.file_name().unwrap().to_str().unwrap();
        c.cred = OpaqueAuth::from(&AuthSys::default());
        let mut ops = vec![Op::Putrootfh(()), Op::Lookup(name.into()), Op::Lookup("dir".into())];
        ops.extend([Op::Getfh(()), Op::Lookup("file".into()), Op::Getfh(())]);
        ops.extend([Op::Putrootfh(()), Op::Lookup(name.into())]);
        ops.extend([Op::Lookup("mine".into()), Op::Getfh(())]);
        let results = c.ok(ops).await;
        let handles = results.iter().filter_map(|result| match result {
            OpRes::Getfh(Ok(handle)) => Some(handle.clone()),
            _ => None,
        });
        let handles: Vec<FileHandle> = handles.collect();
        let [dir, file, mine] = <[FileHandle; 3]>::try_from(handles).unwrap();
        let User { uid, gid, .. } = user;
        c.cred = OpaqueAuth::from(&AuthSys { uid, gid, ..AuthSys::default() });
        Self { c, dir, file, mine, user }
    }
    /// Whether the server executes it over NFSv3.
    async fn over_3(&mut self, act: Act) -> bool {
        let (dir, file) = (opaque3(&self.dir), opaque3(&self.file));
        let new = || DirOp::new(dir.clone(), &b"new"[..]);
        let old = || DirOp::new(dir.clone(), &b"file"[..]);
        let c = &mut *self.c;
        let sets = match act {
            Chmod => Some(SetAttr { mode: Some(0o600), ..SetAttr::NONE }),
            Chown => Some(SetAttr { uid: Some(OTHER), ..SetAttr::NONE }),
            Chgrp => Some(SetAttr { gid: Some(self.user.acts_as.1), ..SetAttr::NONE }),
            Truncate => Some(SetAttr { size: Some(1), ..SetAttr::NONE }),
            TouchNow => {
                Some(SetAttr { atime: SetTime3::Now, mtime: SetTime3::Now, ..SetAttr::NONE })
            }
            TouchAt => {
                let at = SetTime3::To(Time { seconds: 1, nseconds: 0 });
                Some(SetAttr { atime: at, mtime: at, ..SetAttr::NONE })
            }
            _ => None,
        };
        if let Some(set) = sets {
            return v3_call(c, &op3::setattr::Args { object: file, set, guard: None })
                .await
                .is_ok();
        }
        let reads = op3::read::Args { file: file.clone(), offset: 0, count: 1 };
        let data = weir_nfs::Data::Bytes("x".into());
        let stable = op3::write::Stability::FileSync;
        let writes = op3::write::Args { file: file.clone(), offset: 0, count: 1, stable, data };
        let set = SetAttr { mode: Some(0o644), ..SetAttr::NONE };
        match act {
            OpenRead => v3_call(c, &reads).await.is_ok(),
            OpenWrite => v3_call(c, &writes).await.is_ok(),
            OpenBoth => v3_call(c, &reads).await.is_ok() && v3_call(c, &writes).await.is_ok(),
            MayRead | MayWrite | MayExecute => {
                let rights = op3::access::Rights::all();
                let args = op3::access::Args { object: file, rights };
                let granted = v3_call(c, &args).await.unwrap().rights;
                granted.bits() & bit_of(act) != 0
            }
            Lookup => v3_call(c, &op3::lookup::Args { what: old() }).await.is_ok(),
            Readdir => {
                let args = op3::readdir::Args { dir, cookie: 0, verifier: [0; 8], count: 4096 };
                v3_call(c, &args).await.is_ok()
            }
            Create => {
                let how = op3::create::How::Guarded(set);
                v3_call(c, &op3::create::Args { target: new(), how }).await.is_ok()
            }
            Mkdir => v3_call(c, &op3::mkdir::Args { target: new(), set }).await.is_ok(),
            Symlink => {
                let args = op3::symlink::Args { target: new(), set, path: "x".into() };
                v3_call(c, &args).await.is_ok()
            }
            Link => {
                let args = op3::link::Args { file: opaque3(&self.mine), link: new() };
                v3_call(c, &args).await.is_ok()
            }
            Rename => v3_call(c, &op3::rename::Args { from: old(), to: new() }).await.is_ok(),
            Remove => v3_call(c, &op3::remove::Args { target: old() }).await.is_ok(),
            other => unreachable!("{other:?}"),
        }
    }

    /// Whether the server executes it over NFSv4.2.
    async fn over_4(&mut self, act: Act) -> bool {
        let (dir, file) = (Op::Putfh(self.dir.clone()), Op::Putfh(self.file.clone()));
        let set = |attrs: Attrs| {
            Op::Setattr(setattr::Args { stateid: StateId::ANONYMOUS, attrs: attrs.into() })
        };
        let mode = || Attrs { mode: Some(0o644), ..Attrs::default() };
        let made =
            |kind| Op::Create(create::Args { kind, name: "new".into(), attrs: mode().into() });
        let opens = |access, how, claim| {
            Op::Open(open::Args {
                seqid: 0,
                share_access: access | open::ShareAccess::WANT_NO_DELEG,
                share_deny: open::ShareDeny::empty(),
                owner: StateOwner { client_id: 0, owner: "process".into() },
                how,
                claim,
            })
        };
        let reopen = |access| opens(access, open::How::NoCreate, open::Claim::Fh);
        let times = |time: SetTime| Attrs {
            time_access_set: Some(time),
            time_modify_set: Some(time),
            ..Attrs::default()
        };
        let number = |number: u32| number.to_string().as_str().into();
        let ops = match act {
            OpenRead => vec![file, reopen(open::ShareAccess::READ)],
            OpenWrite => vec![file, reopen(open::ShareAccess::WRITE)],
            OpenBoth => vec![file, reopen(open::ShareAccess::BOTH)],
            Chmod => vec![file, set(Attrs { mode: Some(0o600), ..Attrs::default() })],
            Chown => vec![file, set(Attrs { owner: Some(number(OTHER)), ..Attrs::default() })],
            Chgrp => {
                let group = Some(number(self.user.acts_as.1));
                vec![file, set(Attrs { owner_group: group, ..Attrs::default() })]
            }
            Truncate => vec![file, set(Attrs { size: Some(1), ..Attrs::default() })],
            TouchNow => vec![file, set(times(SetTime::ToServerTime))],
            TouchAt => {
                let time = NfsTime { seconds: 1, nseconds: 0 };
                vec![file, set(times(SetTime::ToClientTime(time)))]
            }
            MayRead | MayWrite | MayExecute => {
                let asked = access::Rights::from_bits_retain(0x3f);
                match self.c.ok(vec![file, Op::Access(asked)]).await.pop() {
                    Some(OpRes::Access(Ok(granted))) => {
                        return granted.rights.bits() & bit_of(act) != 0;
                    }
                    other => panic!("{other:?}"),
                }
            }
            Lookup => vec![dir, Op::Lookup("file".into())],
            Readdir => {
                let (verifier, attrs) = ([0; 8], weir_nfs::v4::Bitmap::EMPTY);
                let (dir_count, max_count) = (4096, 4096);
                let args = readdir::Args { cookie: 0, verifier, dir_count, max_count, attrs };
                vec![dir, Op::Readdir(args)]
            }
            Create => {
                let how = open::How::Create(open::CreateHow::Guarded(mode().into()));
                vec![dir, opens(open::ShareAccess::BOTH, how, open::Claim::Null("new".into()))]
            }
            Mkdir => vec![dir, made(create::Kind::Directory)],
            Symlink => vec![dir, made(create::Kind::Symlink("x".into()))],
            Link => {
                let mine = Op::Putfh(self.mine.clone());
                vec![mine, Op::Savefh(()), dir, Op::Link(link::Args::from("new"))]
            }
            Rename => {
                let args = rename::Args { from: "file".into(), to: "new".into() };
                vec![dir.clone(), Op::Savefh(()), dir, Op::Rename(args)]
            }
            Remove => vec![dir, Op::Remove("file".into())],
        };
        let reply = self.c.run(ops).await;
        if let Some(OpRes::Open(Ok(opened))) = reply.results.last() {
            let close = Op::Close(close::Args { seqid: 0, open_stateid: opened.stateid });
            if act != Create {
                self.c.ok(vec![Op::Putfh(self.file.clone()), close]).await;
            }
        }
        reply.status.is_ok()
    }
}

/// The bit of ACCESS for it, in both versions.
fn bit_of(act: Act) -> u32 {
    match act {
        MayRead => 0x01,
        MayWrite => 0x04,
        _ => 0x20,
    }
}

/// Whether the kernel lets a process of a user do each of these, each in the directory with its name.
fn by_kernel(dir: &Path, prefix: &str, acts: &[Act], user: (u32, u32)) -> Vec<bool> {
    let commands = acts.iter().map(|act| format!("cd {prefix}-{act:?} && {}", act.script()));
    answers(dir, commands, user)
}

/// `dir` with a `file` of the owner, and `mine`, a file of the user, beside it. The modes come later.
fn make(at: &Path, user: User, owner_of_dir: u32) {
    fs::create_dir(at).unwrap();
    set_mode(at, 0o777);
    fs::create_dir(at.join("dir")).unwrap();
    set_mode(&at.join("dir"), 0o755);
    for (name, uid) in [("dir/file", OWNER), ("mine", user.acts_as.0)] {
        fs::write(at.join(name), "bytes").unwrap();
        chown(at.join(name), Some(uid), Some(OWNER)).unwrap();
    }
    chown(at.join("dir"), Some(owner_of_dir), Some(OWNER)).unwrap();
}

/// Compares all acts of some users.
async fn compare(squash: Squash, users: &[User]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    set_mode(dir.path(), 0o755);
    let adjust: fn(&mut ServerConfig) = |config| {
        // The syncs of thousands of names would take most of the time.
        config.exports[0].options.durability = Durability::Relaxed;
    };
    let squashed: fn(&mut ServerConfig) = |config| {
        config.exports[0].options.durability = Durability::Relaxed;
        config.exports[0].options.squash = Squash::Root;
    };
    let store = LocalFs::open(dir.path(), LocalOptions::default()).unwrap();
    let has_lists = store.capabilities().contains(Capabilities::POSIX_ACL);
    if !has_lists {
        weir_skip::skip("the file system has no access control lists");
    }
    let f = Fixture::of_with(store, if squash == Squash::Root { squashed } else { adjust }).await;
    let mut c = f.client("a").await;
    let mut wrong = Vec::new();
    let (open, readable) = (Mode(0o755), Mode(0o644));
    let lists = match has_lists {
        true => LISTS.map(List).to_vec(),
        false => Vec::new(),
    };
    let files = FILE_MODES.map(Mode).into_iter().chain(lists.iter().copied());
    let of_files = files.map(|rights| (&ON_FILE[..], open, rights, OWNER));
    let dirs = DIR_MODES.map(Mode).into_iter().chain(lists.iter().copied());
    // In a sticky directory it matters whose the file is, and whose the directory.
    let owners = [OWNER, OTHER].into_iter();
    let of_dirs = dirs
        .flat_map(|rights| owners.clone().map(move |owner| (&IN_DIR[..], rights, readable, owner)));
    let cases = of_files.chain(of_dirs);
    for (number, (case, &user)) in
        cases.flat_map(|case| users.iter().map(move |user| (case, user))).enumerate()
    {
        let (acts, of_dir, of_file, owner_of_dir) = case;
        let begin = |name: &str, act: Act| {
            let at = dir.path().join(format!("{name}-{act:?}"));
            make(&at, user, owner_of_dir);
            at
        };
        let set_rights = |at: &Path| {
            of_file.set(&at.join("dir/file"));
            of_dir.set(&at.join("dir"));
        };
        let kernel = format!("kernel-{number}");
        acts.iter().for_each(|act| set_rights(&begin(&kernel, *act)));
        let may = by_kernel(dir.path(), &kernel, acts, user.acts_as);
        let executes = acts.iter().zip(&may).any(|(act, may)| *act == MayExecute && *may);
        let allowed = |act: Act, minor, may: bool| {
            may || act.is_allowed_by_nfs(minor, user.acts_as.0, executes)
        };
        for ((&act, &by_kernel), minor) in
            acts.iter().zip(&may).flat_map(|one| [(one, None), (one, Some(2))])
        {
            let at = begin(&format!("served-{number}-{minor:?}"), act);
            let mut trial = Trial::begin(&mut c, &at, user).await;
            set_rights(&at);
            let done = match minor {
                None => trial.over_3(act).await,
                Some(_) => trial.over_4(act).await,
            };
            let expected = match (act, minor) {
                // NFSv3 has no open for both: it sees a read and a write.
                (OpenBoth, None) => acts.iter().zip(&may).all(|(act, may)| match act {
                    OpenRead | OpenWrite => allowed(*act, minor, *may),
                    _ => true,
                }),
                _ => allowed(act, minor, by_kernel),
            };
            if done != expected {
                let uid = user.uid;
                wrong.push(format!(
                    "{act:?} by {uid} ({squash:?}) over {minor:?}, directory {of_dir:?} of \
                     {owner_of_dir}, file {of_file:?}: {done}"
                ));
            }
        }
    }
    wrong
}

#[tokio::test]
async fn users_may_do_what_the_kernel_allows_them() {
    if !weir_skip::is_root("it runs processes of several users") {
        return;
    }
    let mut wrong = compare(Squash::Nobody, &USERS).await;
    wrong.extend(compare(Squash::Root, &[SQUASHED]).await);
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}
