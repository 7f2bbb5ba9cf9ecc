//! Files without a name (O_TMPFILE).
//!
//! 1. Such a file has a hidden name in its directory, because a store's files have names, and because
//!    linkat(2) may give it another one. Listings through this mount leave the hidden name out, and
//!    the count of links does not include it.
//! 2. The name is removed when the file gets another one or is closed for the last time, or when the mount ends; files
//!    that are opened while it ends lose it at once. If this process is killed before, the name stays:
//!    `.weir-tmpfile.` and sixteen digits.

use crate::mounted::file_system::{Answered, Mounted};
use crate::mounted::names::new_attributes;
use crate::mounted::nodes::Hidden;
use crate::wire::abi::CreateIn;
use crate::wire::request::Requester;
use std::hash::{BuildHasher, Hasher, RandomState};
use weir_vfs::{Access, Caller, CreateMode, Error, FileId};

const PREFIX: &[u8] = b".weir-tmpfile.";

impl Mounted {
    pub(super) async fn tmpfile(&self, from: Requester, dir: u64, args: &CreateIn) -> Answered {
        let dir = self.nodes.file(dir)?;
        let caller = self.caller(from);
        let set = new_attributes((args.mode, args.umask));
        let access = Access::READ | Access::WRITE;
        let number = RandomState::new().build_hasher().finish();
        let name = [PREFIX, format!("{number:016x}").as_bytes()].concat();
        let new = dir.entry(&name).with(&set);
        let made = self.fs.create_open(&caller, new, CreateMode::MustBeNew, access).await?;
        let (mut made, file) = made;
        let hidden = Hidden { dir, name };
        let opened = match file {
            Some(file) => Ok(file),
            None => self.fs.open(&Caller::Own, made.attr.id, access).await,
        };
        let file = match opened {
            Ok(file) => file,
            // A server lets only its users open and remove their files, and the hidden name may have to be removed when
            // none is there any more.
            Err(Error::AccessDenied) if caller != Caller::Own => {
                self.remove_made(&caller, dir.entry(&hidden.name), made.attr.id).await;
                return Err(Error::NotSupported.into());
            }
            Err(error) => {
                self.unhide(Some(hidden)).await;
                return Err(error.into());
            }
        };
        let node = self.nodes.learn(&made.attr);
        if let late @ Some(_) = self.nodes.hide(node, hidden) {
            self.unhide(late).await;
            made.attr.nlink = made.attr.nlink.saturating_sub(1);
        }
        self.opened_entry(file, node, made.attr, args.flags).await
    }

    /// Removes a hidden name.
    pub(super) async fn unhide(&self, hidden: Option<Hidden>) {
        let Some(Hidden { dir, name }) = hidden else { return };
        match self.fs.unlink(&Caller::Own, dir.entry(&name)).await {
            Ok(()) | Err(Error::NotFound | Error::Stale) => {}
            Err(error) => {
                let name = String::from_utf8_lossy(&name);
                tracing::warn!("cannot remove {name} of a file without a name: {error}");
            }
        }
    }

    /// Removes all hidden names.
    pub(crate) async fn unhide_all(&self) {
        for hidden in self.nodes.take_all_hidden() {
            self.unhide(Some(hidden)).await;
        }
    }

    /// Whether a directory's entry is a hidden name.
    pub(super) fn is_hidden(&self, dir: FileId, name: &[u8]) -> bool {
        name.starts_with(PREFIX) && self.nodes.is_hidden(&Hidden { dir, name: name.to_vec() })
    }
}
