//! `weir chown`: changes owners and groups.

use super::set_attributes::{Files, set_attributes};
use crate::arguments::{JsonArgs, MountArgs, location};
use crate::ended::Ended;
use std::str::FromStr;
use weir_tools::failure::Result;
use weir_tools::location::Location;
use weir_tools::mounts::Links;
use weir_vfs::SetAttr;

/// Change the owner and group of files
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir chown alice nfs://filer/images/disk.img
  weir chown alice:users nfs://filer/images/disk.img
  weir chown -R :backup nfs://filer/backup        the group alone
  weir chown 1000:1000 disk.img

Names are those of this machine; a server gets their numbers, unless they have none here. -R \
changes symbolic links themselves, and nothing that they point to.")]
pub(crate) struct Args {
    /// USER, USER:GROUP, USER: (with the user's login group) or :GROUP, by names or numbers
    #[arg(value_name = "OWNER")]
    owner: Owner,
    /// The files
    #[arg(value_name = "LOCATION", required = true, value_parser = location())]
    locations: Vec<Location>,
    /// Change directories with their content
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change a symbolic link itself
    #[arg(long)]
    no_dereference: bool,
    /// Print a line for each file
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    mount: MountArgs,
}

/// Numbers of an owner and a group to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let uid = match user {
            "" => None,
            user => Some(user_number(user).ok_or(format!("there is no user {user}"))?),
        };
        let gid = match (group, uid) {
            (Some(""), Some(uid)) => {
                let login = uzers::get_user_by_uid(uid).map(|user| user.primary_group_id());
                Some(login.ok_or(format!("{user} has no login group"))?)
            }
            (None | Some(""), _) => None,
            (Some(group), _) => {
                Some(group_number(group).ok_or(format!("there is no group {group}"))?)
            }
        };
        match (uid, gid) {
            (None, None) => {
                Err("no owner; write it like alice, alice:users, :users or 1000:100".into())
            }
            (uid, gid) => Ok(Self { uid, gid }),
        }
    }
}

/// A name goes before a number, as in chown(1).
fn user_number(name: &str) -> Option<u32> {
    let found = uzers::get_user_by_name(name).map(|user| user.uid());
    found.or_else(|| number(name))
}

fn group_number(name: &str) -> Option<u32> {
    let found = uzers::get_group_by_name(name).map(|group| group.gid());
    found.or_else(|| number(name))
}

/// The largest number stands for "unchanged" in chown(2).
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number != u32::MAX)
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let links = match args.no_dereference || args.recursive {
        true => Links::Stay,
        false => Links::Follow,
    };
    let files = Files {
        command: "chown",
        attribute: "owner",
        locations: &args.locations,
        links,
        recursive: args.recursive,
        verbose: args.verbose,
        json: &args.json,
        mount: &args.mount,
    };
    let Owner { uid, gid } = args.owner;
    set_attributes(&files, |_| Some(SetAttr { uid, gid, ..SetAttr::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_as_chown_takes_them() {
        for (text, uid, gid) in [
            ("root", Some(0), None),
            ("root:", Some(0), Some(0)),
            (":root", None, Some(0)),
            ("1234:5678", Some(1234), Some(5678)),
            (":7", None, Some(7)),
        ] {
            assert_eq!(text.parse(), Ok(Owner { uid, gid }), "{text}");
        }
        for text in ["", ":", "no such user", "4294967295", "1:no such group"] {
            assert!(text.parse::<Owner>().is_err(), "{text}");
        }
    }
}
