//! This program as a helper of mount(8): linked as `/sbin/mount.fuse.weir`, it takes the command line
//! that mount(8) gives its helpers.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Options for mount(8) or for every file system, which need nothing here.
const IGNORED: [&str; 24] = [
    "defaults",
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "auto",
    "noauto",
    "nouser",
    "owner",
    "group",
    "async",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nofail",
    "_netdev",
    "fail",
    "silent",
    "loud",
];

/// The command line `weir mount ...` for one of mount(8); any other as it is.
pub(crate) fn spelled(args: Vec<OsString>) -> Vec<OsString> {
    let name = args.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    if !name.as_bytes().starts_with(b"mount.") {
        return args;
    }
    let mut spelled = vec![OsString::from("weir")];
    spelled.extend(translated(args[1..].to_vec()));
    spelled
}

/// The arguments `mount ...` for those of this process, without its name.
pub(crate) fn translated(args: Vec<OsString>) -> Vec<OsString> {
    if args.first().is_some_and(|first| first == "mount") {
        return args;
    }
    let mut out = vec![OsString::from("mount")];
    let mut places = Vec::new();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.as_bytes() {
            b"-o" => out.extend(args.next().iter().flat_map(|list| options(list))),
            [b'-', b'o', list @ ..] => out.extend(options(OsStr::from_bytes(list))),
            // The type and the namespace, which mount(8) has dealt with.
            b"-t" | b"-N" => drop(args.next()),
            // Sloppy, no table, verbose.
            b"-s" | b"-n" | b"-v" => {}
            // A mount that is only to be entered into the table: it is refused as unknown.
            b"-f" => out.push("--fake".into()),
            [b'-', ..] => out.push(arg),
            _ => places.push(arg),
        }
    }
    out.extend(places);
    out
}

/// The arguments for a list of options.
fn options(list: &OsStr) -> Vec<OsString> {
    let mut out = Vec::new();
    for option in list.as_bytes().split(|&byte| byte == b',').filter(|option| !option.is_empty()) {
        let text = OsStr::from_bytes(option);
        let name = option.split(|&byte| byte == b'=').next().unwrap_or_default();
        match name {
            b"ro" => out.push("--read-only".into()),
            b"allow_other" => out.push("--allow-other".into()),
            b"uncached" if name == option => out.push("--uncached".into()),
            b"cache" | b"budget" | b"log" => {
                out.push(OsString::from_vec([b"--", option].concat()));
            }
            b"attr_timeout" => {
                let value = option.get(name.len()..).unwrap_or_default();
                out.push(OsString::from_vec([b"--attr-timeout", value].concat()));
            }
            _ if IGNORED.iter().any(|ignored| ignored.as_bytes() == option) => {}
            _ if option.starts_with(b"x-") || option.starts_with(b"comment=") => {}
            _ => out.extend([OsString::from("-o"), text.to_owned()]),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> String {
        let args = spelled(line.split(' ').map(OsString::from).collect());
        args.iter().map(|arg| arg.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_command_line_of_mount_is_translated() {
        for (line, spelled) in [
            ("/sbin/mount.fuse.weir nfs://h/x /mnt -o rw", "weir mount nfs://h/x /mnt"),
            (
                "mount.fuse.weir /a /b -n -o ro,allow_other,budget=2G,_netdev,vers=4.2,x-systemd.a=b",
                "weir mount --read-only --allow-other --budget=2G -o vers=4.2 /a /b",
            ),
            ("mount.weir /a /b -t fuse.weir -oattr_timeout=5", "weir mount --attr-timeout=5 /a /b"),
            ("mount.weir /a /b -o user,exec,dev", "weir mount -o user -o exec /a /b"),
            ("weir ls -o ro", "weir ls -o ro"),
        ] {
            assert_eq!(said(line), spelled);
        }
    }
}
