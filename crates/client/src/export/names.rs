//! Operations on names and attributes.

use super::resolve::{Found, Links, resolve};
use super::{Asked, Export, File, Metadata, OpenOptions};
use bytes::Bytes;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use weir_vfs::{
    Attr, Caller, CreateMode, Error, FileKind, FileSystem, FsStat, RenameFlags, SetAttr,
    WholeRequest, XattrMode,
};

/// Largest file that [`Export::read`] tries to read in one request, in bytes.
const WHOLE_BYTES: usize = 64 << 10;
/// Permission bits of a new directory.
const DIRECTORY_MODE: u32 = 0o755;

impl Export {
    /// Opens a file to read it.
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        self.open_with(path, &OpenOptions::new().read(true)).await
    }

    /// Opens a file to read and write; creates it if it does not exist, and truncates it if it does.
    pub async fn create(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(true);
        self.open_with(path, &options).await
    }

    /// Opens a file in the way that `options` describe.
    pub async fn open_with(
        &self,
        path: impl AsRef<Path>,
        options: &OpenOptions,
    ) -> io::Result<File> {
        let path = path.as_ref();
        let opened = self.call(Asked::new("open", path), async {
            let access = options.access()?;
            let (attr, is_new) = self.find_or_create(path, options).await?;
            expect_regular(&attr)?;
            let file = self.nfs.open(&Caller::Own, attr.id, access).await?;
            if options.truncate && !is_new {
                file.set_size(0).await?;
            }
            Ok(file)
        });
        Ok(File::new(self.clone(), path.to_path_buf(), opened.await?))
    }

    /// The file to open, and whether it is new.
    async fn find_or_create(
        &self,
        path: &Path,
        options: &OpenOptions,
    ) -> weir_vfs::Result<(Attr, bool)> {
        let links = if options.create_new { Links::Name } else { Links::Follow };
        let may_create = options.create || options.create_new;
        if may_create && path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(Error::IsDirectory);
        }
        let found = resolve(&self.nfs, path, links).await?;
        let mode = match (options.create_new, found.attr()) {
            (true, None) => CreateMode::MustBeNew,
            (true, Some(_)) => return Err(Error::Exists),
            (false, None) if may_create => CreateMode::MayExist,
            (false, _) => return Ok((found.existing(&self.nfs).await?, false)),
        };
        // A directory itself has no name to create.
        let nameless = if options.create_new { Error::Exists } else { Error::IsDirectory };
        let entry = found.entry(nameless)?;
        if found.slash {
            return Err(Error::IsDirectory);
        }
        let set = SetAttr { mode: Some(options.mode), ..SetAttr::default() };
        let made = self.nfs.create(&Caller::Own, entry.with(&set), mode).await?;
        if made.attr.kind == FileKind::Symlink {
            // Another program made it between the look and the creation.
            return Err(Error::Loop);
        }
        Ok((made.attr, made.created))
    }

    /// Reads a file whole. A small one takes few requests, and no open.
    pub async fn read(&self, path: impl AsRef<Path>) -> io::Result<Bytes> {
        let path = path.as_ref();
        let small = self.call(Asked::new("read", path), async {
            let found = resolve(&self.nfs, path, Links::Follow).await?;
            let attr = found.existing(&self.nfs).await?;
            expect_regular(&attr)?;
            let (id, max_bytes) = (attr.id, WHOLE_BYTES);
            if attr.size > max_bytes as u64 {
                return Ok(None);
            }
            let request = WholeRequest { id, max_bytes, with_xattrs: false };
            self.nfs.get_whole(&Caller::Own, request).await
        });
        match small.await? {
            Some(whole) => Ok(whole.data.into()),
            None => self.open(path).await?.read_at(0, usize::MAX).await,
        }
    }

    /// Makes `data` the content of a file; creates it if it does not exist. The data is durable when
    /// the future is done; before, readers may see a part of it. For all or nothing, write another file
    /// and [`rename`](Self::rename) it.
    pub async fn write(&self, path: impl AsRef<Path>, data: impl Into<Bytes>) -> io::Result<()> {
        let options = OpenOptions::new().write(true).create(true).truncate(true);
        self.open_with(path, &options).await?.write_at(0, data).await
    }

    /// Renames a file or directory, and replaces a file or an empty directory that has the new name.
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        self.rename_with(from, to, RenameFlags::Replace).await
    }

    /// The same with flags. No version of NFS has a request for them: with
    /// [`RenameFlags::NoReplace`], a file is linked, which is atomic, before its old name is removed (if
    /// that fails, the new one is removed again), and a directory replaces at most an empty one;
    /// [`RenameFlags::Exchange`] is not supported.
    pub async fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> io::Result<()> {
        let (path, to) = (from.as_ref(), to.as_ref());
        let asked = Asked { operation: "rename", path, to: Some(to) };
        self.call(asked, async {
            let from = resolve(&self.nfs, path, Links::Name).await?;
            let to = resolve(&self.nfs, to, Links::Name).await?;
            let entries = (from.entry(Error::Busy)?, to.entry(Error::Busy)?);
            let attr = from.existing(&self.nfs).await?;
            if (from.slash || to.slash) && attr.kind != FileKind::Directory {
                return Err(Error::NotDirectory);
            }
            self.nfs.rename(&Caller::Own, entries.0, entries.1, flags).await
        })
        .await
    }

    /// Removes a name of a file or symbolic link.
    pub async fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        self.call(Asked::new("remove", path), async {
            let found = resolve(&self.nfs, path, Links::Name).await?;
            let entry = found.entry(Error::IsDirectory)?;
            match found.attr().map(|attr| attr.kind) {
                None => Err(Error::NotFound),
                Some(FileKind::Directory) => Err(Error::IsDirectory),
                Some(_) if found.slash => Err(Error::NotDirectory),
                Some(_) => self.nfs.unlink(&Caller::Own, entry).await,
            }
        })
        .await
    }

    /// Creates a directory, with mode 0755.
    pub async fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        self.call(Asked::new("create directory", path), self.make_dir(path)).await
    }

    /// Creates a directory, and those above it that do not exist.
    pub async fn create_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        self.call(Asked::new("create directory", path), async {
            let mut missing = Vec::new();
            for above in path.ancestors().filter(|above| !above.as_os_str().is_empty()) {
                match self.make_dir_unless_there(above).await {
                    Err(Error::NotFound) => missing.push(above),
                    Ok(()) => break,
                    Err(error) => return Err(error),
                }
            }
            for path in missing.into_iter().rev() {
                self.make_dir_unless_there(path).await?;
            }
            Ok(())
        })
        .await
    }

    async fn make_dir(&self, path: &Path) -> weir_vfs::Result<()> {
        let found = resolve(&self.nfs, path, Links::Name).await?;
        let entry = found.entry(Error::Exists)?;
        if found.attr().is_some() {
            return Err(Error::Exists);
        }
        let set = SetAttr { mode: Some(DIRECTORY_MODE), ..SetAttr::default() };
        self.nfs.mkdir(&Caller::Own, entry.with(&set)).await.map(drop)
    }

    async fn make_dir_unless_there(&self, path: &Path) -> weir_vfs::Result<()> {
        match self.make_dir(path).await {
            Err(Error::Exists) => {
                let found = resolve(&self.nfs, path, Links::Follow).await?;
                match found.existing(&self.nfs).await?.kind {
                    FileKind::Directory => Ok(()),
                    _ => Err(Error::Exists),
                }
            }
            made => made,
        }
    }

    /// Removes an empty directory.
    pub async fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        self.call(Asked::new("remove directory", path), async {
            let found = resolve(&self.nfs, path, Links::Name).await?;
            let entry = found.entry(Error::Invalid)?;
            match found.attr().map(|attr| attr.kind) {
                None => Err(Error::NotFound),
                Some(FileKind::Directory) => self.nfs.rmdir(&Caller::Own, entry).await,
                Some(_) => Err(Error::NotDirectory),
            }
        })
        .await
    }

    /// Attributes of a file; of a symbolic link's target.
    pub async fn metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        self.attributes(path.as_ref(), Links::Follow).await
    }

    /// Attributes of a file; of a symbolic link itself.
    pub async fn symlink_metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        self.attributes(path.as_ref(), Links::Stay).await
    }

    async fn attributes(&self, path: &Path, links: Links) -> io::Result<Metadata> {
        let found = async {
            let found = resolve(&self.nfs, path, links).await?;
            found.existing(&self.nfs).await
        };
        Ok(Metadata(self.call(Asked::new("look up", path), found).await?))
    }

    /// Whether a file exists. A broken symbolic link does not.
    ///
    /// # Errors
    /// It is not known: a directory above may not be searched, say.
    pub async fn try_exists(&self, path: impl AsRef<Path>) -> io::Result<bool> {
        match self.metadata(path).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sets the permission bits, with set-id and sticky.
    pub async fn set_permissions(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        let set = SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() };
        self.set_attributes(path, &set).await.map(drop)
    }

    /// Sets attributes of a file (of a symbolic link's target), and returns the resulting ones.
    pub async fn set_attributes(
        &self,
        path: impl AsRef<Path>,
        set: &SetAttr,
    ) -> io::Result<Metadata> {
        let path = path.as_ref();
        let attr = self.call(Asked::new("set attributes of", path), async {
            let attr = self.target(path).await?;
            self.nfs.setattr(&Caller::Own, attr.id, set).await
        });
        Ok(Metadata(attr.await?))
    }

    /// The file that a path leads to.
    async fn target(&self, path: &Path) -> weir_vfs::Result<Attr> {
        resolve(&self.nfs, path, Links::Follow).await?.existing(&self.nfs).await
    }

    /// Gives a file another name. A symbolic link is not followed.
    pub async fn hard_link(
        &self,
        original: impl AsRef<Path>,
        link: impl AsRef<Path>,
    ) -> io::Result<()> {
        let (path, link) = (original.as_ref(), link.as_ref());
        let asked = Asked { operation: "link", path, to: Some(link) };
        self.call(asked, async {
            let found = resolve(&self.nfs, path, Links::Stay).await?;
            let original = found.existing(&self.nfs).await?;
            let to: Found = resolve(&self.nfs, link, Links::Name).await?;
            self.nfs.link(&Caller::Own, original.id, to.vacant()?).await.map(drop)
        })
        .await
    }

    /// Creates a symbolic link at `link` with `target`, which is not checked.
    pub async fn symlink(
        &self,
        target: impl AsRef<Path>,
        link: impl AsRef<Path>,
    ) -> io::Result<()> {
        let (target, path) = (target.as_ref().as_os_str().as_bytes(), link.as_ref());
        self.call(Asked::new("create symbolic link", path), async {
            let found = resolve(&self.nfs, path, Links::Name).await?;
            let set = SetAttr::default();
            let new = found.vacant()?.with(&set);
            self.nfs.symlink(&Caller::Own, new, target).await.map(drop)
        })
        .await
    }

    /// The target of a symbolic link.
    pub async fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let path = path.as_ref();
        let target = self.call(Asked::new("read symbolic link", path), async {
            let found = resolve(&self.nfs, path, Links::Stay).await?;
            let attr = found.existing(&self.nfs).await?;
            match attr.kind {
                FileKind::Symlink => self.nfs.readlink(&Caller::Own, attr.id).await,
                _ => Err(Error::Invalid),
            }
        });
        Ok(OsString::from_vec(target.await?).into())
    }

    /// The path from the root of the export to a file that exists, without symbolic links, `.` and
    /// `..`; it begins with a slash.
    pub async fn canonicalize(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let path = path.as_ref();
        self.call(Asked::new("resolve", path), async {
            let found = resolve(&self.nfs, path, Links::Follow).await?;
            found.existing(&self.nfs).await?;
            Ok(found.real_path())
        })
        .await
    }

    /// Space and file counts of the export's file system.
    pub async fn statfs(&self) -> io::Result<FsStat> {
        self.call(Asked::new("read the space of", Path::new("/")), self.nfs.statfs()).await
    }

    /// The value of an extended attribute, by its full name (`user.origin`); version 4.2.
    pub async fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> io::Result<Bytes> {
        let path = path.as_ref();
        let value = self.call(Asked::new("read an extended attribute of", path), async {
            let id = self.target(path).await?.id;
            self.nfs.get_xattr(&Caller::Own, id.xattr(name.as_ref())).await
        });
        Ok(value.await?.into())
    }

    /// Full names of the extended attributes; version 4.2.
    pub async fn xattrs(&self, path: impl AsRef<Path>) -> io::Result<Vec<OsString>> {
        let path = path.as_ref();
        let names = self.call(Asked::new("list the extended attributes of", path), async {
            let id = self.target(path).await?.id;
            self.nfs.list_xattrs(&Caller::Own, id).await
        });
        Ok(names.await?.into_iter().map(OsString::from_vec).collect())
    }

    /// Sets an extended attribute, or removes it (`None`); version 4.2.
    pub async fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: Option<&[u8]>,
    ) -> io::Result<()> {
        let path = path.as_ref();
        self.call(Asked::new("set an extended attribute of", path), async {
            let id = self.target(path).await?.id;
            let xattr = id.xattr(name.as_ref());
            match value {
                Some(value) => {
                    self.nfs.set_xattr(&Caller::Own, xattr, value, XattrMode::Either).await
                }
                None => self.nfs.remove_xattr(&Caller::Own, xattr).await,
            }
        })
        .await
    }
}

/// # Errors
/// The file is not one that can be opened for its data.
fn expect_regular(attr: &Attr) -> weir_vfs::Result<()> {
    match attr.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Error::IsDirectory),
        _ => Err(Error::Invalid),
    }
}
