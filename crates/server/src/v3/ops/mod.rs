//! The procedures. Each takes its arguments and returns its results.

mod attr;
mod create;
mod info;
mod link;
mod lookup;
mod read;
mod readdir;
mod remove;
mod rename;
mod write;

pub(super) use attr::{access, getattr, setattr};
pub(super) use create::{create, mkdir, mknod, symlink};
pub(super) use info::{fsinfo, fsstat, null, pathconf};
pub(super) use link::{link, readlink};
pub(super) use lookup::lookup;
pub(super) use read::read;
pub(super) use readdir::{readdir, readdirplus};
pub(super) use remove::{remove, rmdir};
pub(super) use rename::rename;
pub(super) use write::{commit, write};
