//! What the kernel lets processes of users do, by the modes and access control lists of files: what tests compare the
//! server with. They need root.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use weir_vfs::AclWho::{Group, Mask, NamedGroup, Other, Owner, User as Named};
use weir_vfs::{Access, Acl, AclKind, AclRights, AclWho, acl_xattr};

pub(crate) const OWNER: u32 = 1000;
pub(crate) const MEMBER: u32 = 1002;
pub(crate) const OTHER: u32 = 1001;
/// The user that a squashed superuser becomes.
pub(crate) const NOBODY: u32 = 65_534;

pub(crate) const FILE_MODES: [u32; 12] =
    [0, 0o400, 0o200, 0o100, 0o640, 0o644, 0o020, 0o004, 0o002, 0o711, 0o4755, 0o2755];

/// The entries of an access control list that names users or groups.
pub(crate) type Entries = &'static [(AclWho, AclRights)];

pub(crate) const LISTS: [Entries; 9] = [
    // A named user has more rights than its class, and is bounded by the mask.
    &[(Owner, 6), (Named(OTHER), 7), (Group, 0), (Mask, 7), (Other, 0)],
    &[(Owner, 7), (Named(OTHER), 7), (Group, 7), (Mask, 4), (Other, 0)],
    &[(Owner, 7), (Named(OTHER), 7), (Group, 0), (Mask, 3), (Other, 0)],
    // A named user gets nothing of its group's rights, nor of others'.
    &[(Owner, 7), (Named(MEMBER), 0), (Group, 7), (Mask, 7), (Other, 7)],
    &[(Owner, 7), (Named(OTHER), 1), (Group, 0), (Mask, 7), (Other, 7)],
    // An entry for the owner's id does not count: the owner's own does.
    &[(Owner, 4), (Named(OWNER), 7), (Group, 0), (Mask, 7), (Other, 0)],
    // Of several groups one must give all that is asked; a member gets nothing of others' rights.
    &[(Owner, 7), (Group, 4), (NamedGroup(OWNER), 3), (Mask, 7), (Other, 0)],
    &[(Owner, 7), (Group, 0), (NamedGroup(OTHER), 7), (Mask, 7), (Other, 0)],
    &[(Owner, 7), (Group, 0), (NamedGroup(OTHER), 0), (Mask, 7), (Other, 7)],
];

/// What decides about the rights to a file or directory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rights {
    Mode(u32),
    List(Entries),
}

impl Rights {
    pub(crate) fn set(self, path: &Path) {
        match self {
            Self::Mode(mode) => set_mode(path, mode),
            Self::List(entries) => {
                let list = Acl::new(entries.iter().copied()).unwrap().to_xattr();
                let name = acl_xattr(AclKind::Access);
                rustix::fs::setxattr(path, name, &list, rustix::fs::XattrFlags::empty()).unwrap();
            }
        }
    }
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Who calls the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// As whom the server acts for this user.
    pub(crate) acts_as: (u32, u32),
}

pub(crate) const fn user(uid: u32, gid: u32) -> User {
    User { uid, gid, acts_as: (uid, gid) }
}

/// The owner of files, a member of their group, another user, and the superuser.
pub(crate) const USERS: [User; 4] =
    [user(OWNER, OWNER), user(MEMBER, OWNER), user(OTHER, OTHER), user(0, 0)];

/// The superuser, whom the server squashes.
pub(crate) const SQUASHED: User = User { uid: 0, gid: 0, acts_as: (NOBODY, NOBODY) };

/// Whether the kernel lets a process of a user, in a directory, execute each of these shell commands.
pub(crate) fn answers(
    dir: &Path,
    commands: impl Iterator<Item = String>,
    (uid, gid): (u32, u32),
) -> Vec<bool> {
    let commands: Vec<String> = commands.collect();
    let one = |command| format!("({command}) >&2 && echo yes || echo no\n");
    let script: String = commands.iter().map(one).collect();
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(script).current_dir(dir).uid(uid).gid(gid);
    let said = shell.stdin(Stdio::null()).stderr(Stdio::null()).output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let may: Vec<bool> = said.lines().map(|line| line == "yes").collect();
    assert_eq!(may.len(), commands.len(), "{said}");
    may
}

/// For what the kernel lets a user open a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MayOpen {
    read: bool,
    write: bool,
    both: bool,
    execute: bool,
}

impl MayOpen {
    pub(crate) fn ask(file: &Path, user: User) -> Self {
        let name = file.file_name().unwrap().to_str().unwrap();
        let commands = ["exec 3<", "exec 3>>", "exec 3<>", "test -x "];
        let commands = commands.iter().map(|command| format!("{command}{name}"));
        let may = answers(file.parent().unwrap(), commands, user.acts_as);
        let [read, write, both, execute] = may[..] else { unreachable!() };
        Self { read, write, both, execute }
    }

    /// Whether the server opens the file: a client reads a program to execute it (RFC 8881 section 18.22.4).
    pub(crate) fn or_executes(self, access: Access) -> bool {
        if access == Access::READ { self.read || self.execute } else { self.allows(access) }
    }

    pub(crate) fn allows(self, access: Access) -> bool {
        match (access.contains(Access::READ), access.contains(Access::WRITE)) {
            (true, true) => self.both,
            (_, true) => self.write,
            _ => self.read,
        }
    }
}

/// The owner of a file and the rights to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) owner: u32,
    rights: Rights,
}

impl Change {
    /// What the superuser does to files that were open to all: other modes, lists and owners.
    pub(crate) fn all(with_lists: bool) -> Vec<Self> {
        let of_owner = |rights| Self { owner: OWNER, rights };
        let modes = [0, 0o400, 0o200, 0o100, 0o640, 0o004, 0o711, 0o4755];
        let mut all: Vec<Self> = modes.map(Rights::Mode).map(of_owner).into();
        if with_lists {
            all.extend(LISTS.map(Rights::List).map(of_owner));
        }
        let others = [(OTHER, 0o600), (OTHER, 0o040), (0, 0o600), (MEMBER, 0)];
        all.extend(others.map(|(owner, mode)| Self { owner, rights: Rights::Mode(mode) }));
        all
    }

    pub(crate) fn make(self, file: &Path) {
        std::os::unix::fs::chown(file, Some(self.owner), Some(OWNER)).unwrap();
        self.rights.set(file);
    }

    /// What it lets users do: a file is made for the question.
    pub(crate) fn answers(self, file: &Path, users: &[User]) -> Vec<MayOpen> {
        fs::write(file, "bytes").unwrap();
        self.make(file);
        users.iter().map(|&user| MayOpen::ask(file, user)).collect()
    }
}
