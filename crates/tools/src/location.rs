//! A location: a local path, or `nfs://host[:port]/path?options`.

use crate::text::shown;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weir_client::NfsUrl;

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A path of this machine.
    Local(PathBuf),
    /// A path of an NFS server.
    Nfs(NfsUrl),
}

impl Location {
    /// Parses a location, which may contain any bytes.
    ///
    /// # Errors
    /// It looks like a URL, but is not well-formed.
    pub fn parse(text: OsString) -> weir_client::Result<Self> {
        match text.to_str() {
            Some(url) if is_url(url) => url.parse().map(Self::Nfs),
            _ => Ok(Self::Local(text.into())),
        }
    }

    /// The last component of the path, if there is one; `.` and `..` do not count.
    pub fn name(&self) -> Option<Vec<u8>> {
        match self {
            Self::Local(path) if path.as_os_str().as_bytes().ends_with(b"/.") => None,
            Self::Local(path) => path.file_name().map(|name| name.as_bytes().to_vec()),
            Self::Nfs(url) => url.path.last().cloned(),
        }
    }

    /// The directory of the last component; `None` if there is no such component.
    pub fn parent(&self) -> Option<Self> {
        self.name()?;
        match self {
            Self::Local(path) => match path.parent()? {
                parent if parent.as_os_str().is_empty() => Some(Self::Local(".".into())),
                parent => Some(Self::Local(parent.to_path_buf())),
            },
            Self::Nfs(url) => url.split_last().map(|(parent, _)| Self::Nfs(parent)),
        }
    }

    /// Whether a slash, or `/.`, follows the name: only a directory is there, or a symbolic link that stands for one.
    pub fn ends_in_slash(&self) -> bool {
        match self {
            Self::Local(path) => {
                let bytes = path.as_os_str().as_bytes();
                bytes.ends_with(b"/") || bytes.ends_with(b"/.")
            }
            Self::Nfs(url) => url.ends_in_slash,
        }
    }

    /// The same name without slashes and `/.` at the end, so that a symbolic link there stands for itself.
    #[must_use]
    pub fn without_slash(&self) -> Self {
        match self {
            // An iterator over components leaves these out.
            Self::Local(path) => Self::Local(path.components().as_path().to_path_buf()),
            Self::Nfs(url) => Self::Nfs(NfsUrl { ends_in_slash: false, ..url.clone() }),
        }
    }

    /// The location of a file below this directory.
    pub fn below(&self, names: &[Vec<u8>]) -> Self {
        match self {
            Self::Local(path) => {
                let names = names.iter().map(|name| std::ffi::OsStr::from_bytes(name));
                Self::Local(names.fold(path.clone(), |path, name| path.join(name)))
            }
            Self::Nfs(url) => {
                let mut url = url.clone();
                url.ends_in_slash &= names.is_empty();
                url.path.extend_from_slice(names);
                Self::Nfs(url)
            }
        }
    }

    /// The exact bytes of the path, or the URL.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Local(path) => path.as_os_str().as_bytes().to_vec(),
            Self::Nfs(url) => url.to_string().into_bytes(),
        }
    }
}

/// Whether the text looks like a URL, well-formed or not. `host:/path` and `http://host/path` are
/// not local paths, unless there is a directory called `host:`.
fn is_url(text: &str) -> bool {
    let Some((before, after)) = text.split_once('/') else { return false };
    match before.strip_suffix(':') {
        Some(scheme) if scheme.eq_ignore_ascii_case("nfs") && after.starts_with('/') => true,
        Some(host) => !host.is_empty() && Path::new(before).symlink_metadata().is_err(),
        None => false,
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => f.write_str(&shown(path.as_os_str().as_bytes())),
            Self::Nfs(url) => url.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn a_name_that_only_a_directory_can_have() {
        let ends_in_slash = |text: &str| Location::parse(text.into()).unwrap().ends_in_slash();
        for directory in
            ["a/", "/", "a/?b/", "a/.", "a/./", "nfs://h/a/", "nfs://h/a/?vers=3", "nfs://h/a/."]
        {
            assert!(ends_in_slash(directory), "{directory}");
        }
        for other in ["a", "a/b", "a/.b", "a.", "nfs://h/a", "nfs://h/a?x=/"] {
            assert!(!ends_in_slash(other), "{other}");
        }
    }

    #[test]
    fn urls_and_paths_are_distinguished() {
        let Ok(Location::Nfs(url)) = Location::parse("nfs://h:1/a/b".into()) else {
            panic!("not a URL")
        };
        assert_eq!((url.port, url.path.len()), (Some(1), 2));
        assert!(Location::parse("nfs:///a".into()).is_err());
        assert!(matches!(Location::parse("NFS://h/a".into()), Ok(Location::Nfs(_))));
        for meant in ["nfs:/h/srv", "h:/srv", "http://h/srv"] {
            let error = Location::parse(meant.into()).unwrap_err().to_string();
            assert!(error.ends_with("write nfs://h/srv"), "{error}");
        }
        assert!(matches!(Location::parse("./h:/srv".into()), Ok(Location::Local(_))));
        for (slash, bare) in [("a/b//", "a/b"), ("/", "/"), ("nfs://h/a/", "nfs://h/a")] {
            let slash = Location::parse(slash.into()).unwrap();
            assert!(slash.ends_in_slash());
            assert_eq!(slash.without_slash(), Location::parse(bare.into()).unwrap());
        }
        let odd = OsString::from_vec(b"a/\xff\n".to_vec());
        let local = Location::parse(odd.clone()).unwrap();
        assert_eq!(local, Location::Local(odd.into()));
        assert_eq!(local.name(), Some(b"\xff\n".to_vec()));
        for nameless in [".", "..", "a/.", "a/..", "/", "nfs://h/", "nfs://h/."] {
            assert_eq!(Location::parse(nameless.into()).unwrap().name(), None, "{nameless}");
        }
    }
}
