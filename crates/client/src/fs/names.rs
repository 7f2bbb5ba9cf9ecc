//! Names that are removed or replaced while their files may be open.

use crate::files::silly_rename::Found;
use crate::fs::NfsFs;
use weir_vfs::{Caller, EntryName, Error, FileSystem, RenameFlags, Result, Unnamed};

impl NfsFs {
    /// Whether names of removed open files are in a directory.
    pub(super) async fn has_silly_renamed(
        &self,
        caller: &Caller,
        directory: EntryName<'_>,
    ) -> bool {
        let open_files = &self.mount.state.open_files;
        if open_files.are_none_silly_renamed() {
            return false;
        }
        let Ok(attr) = self.lookup(caller, directory).await else { return false };
        self.handle(attr.id).is_ok_and(|handle| open_files.are_silly_renamed_in(&handle))
    }

    /// Removes the names of open files from a directory that has no others, where the server keeps the files without.
    pub(super) async fn clear_silly_renamed(
        &self,
        caller: &Caller,
        directory: EntryName<'_>,
    ) -> bool {
        let Ok(attr) = self.lookup(caller, directory).await else { return false };
        let (Ok(dir), cred) = (self.handle(attr.id), self.cred(caller)) else { return false };
        let clear = self.mount.run(|state| async move {
            state.open_files.clear_directory(&*state.protocol, &cred, &dir).await
        });
        self.renaming(clear).await.unwrap_or(false)
    }

    /// The file that has a name, if this mount may have it open; it asks the server only if any file
    /// is open. What is done to other files' names is nothing to a cache above: they have no data that
    /// waits to be written.
    pub(super) async fn open_file(&self, entry: EntryName<'_>) -> Found {
        if self.mount.state.open_files.is_empty() {
            return Found::Unknown;
        }
        match self.lookup(&Caller::Own, entry).await {
            Ok(attr) => Found::File(attr.id),
            Err(Error::NotFound) => Found::Nothing,
            Err(_) => Found::Unknown,
        }
    }

    pub(super) async fn names_left(&self, file: Found) -> Result<Option<Unnamed>> {
        Ok(match file {
            Found::File(id) => self.count_names(id).await,
            Found::Nothing | Found::Unknown => None,
        })
    }

    /// Removes a name of the file that was found under it.
    pub(super) async fn unlink_found(
        &self,
        caller: &Caller,
        entry: EntryName<'_>,
        found: Found,
    ) -> Result<()> {
        let ((dir, name), cred) = (self.place(entry)?, self.cred(caller));
        let unlink = self.mount.run(move |state| async move {
            state.open_files.unlink(&*state.protocol, cred, (dir, &name), found).await
        });
        self.renaming(unlink).await
    }

    /// Renames an entry, over the file that was found under the new name.
    pub(super) async fn rename_over(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        (to, found): (EntryName<'_>, Found),
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        let cred = self.cred(caller);
        let rename = self.mount.run(move |state| async move {
            let (from, to) = ((&from.0, &from.1[..]), (&to.0, &to.1[..]));
            state.open_files.rename(&*state.protocol, cred, from, (to, found), flags).await
        });
        self.renaming(rename).await
    }
}
