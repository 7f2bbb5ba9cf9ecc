//! The export numbers in filehandles.
//!
//! 1. An export keeps its number over restarts and reloads, wherever it stands in the
//!    configuration. The number of a removed export is not reused.
//! 2. A number is on disk before a filehandle with it is made.
//!
//! An export is identified by its path and its source directory: with another source, old
//! filehandles would refer to other files.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The number of the pseudo file system.
pub(crate) const PSEUDO: u16 = 0;

const FILE: &str = "exports";

/// The numbers assigned so far.
#[derive(Debug, Default)]
pub(crate) struct ExportIds {
    /// By a hash of path and source. The path is stored for people who read the file.
    known: HashMap<String, (u16, String)>,
    state_dir: Option<PathBuf>,
}

impl ExportIds {
    /// Reads the numbers from `state_dir`, and will store new ones there.
    pub(crate) fn open(state_dir: &Path) -> io::Result<Self> {
        let path = state_dir.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let mut known = HashMap::new();
        for line in text.lines() {
            let mut fields = line.splitn(3, ' ');
            let id = fields.next().and_then(|id| id.parse().ok()).filter(|&id| id != PSEUDO);
            let (Some(id), Some(key)) = (id, fields.next()) else {
                let why = format!(
                    "{}: not an export list; remove it to create a new one (clients must then mount again)",
                    path.display()
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            };
            known.insert(key.to_owned(), (id, fields.next().unwrap_or_default().to_owned()));
        }
        Ok(Self { known, state_dir: Some(state_dir.to_owned()) })
    }

    /// The numbers of exports, each given as a path and its source. New numbers are on disk when
    /// this returns.
    pub(crate) fn of<'a>(
        &mut self,
        exports: impl IntoIterator<Item = (&'a str, &'a Path)>,
    ) -> io::Result<Vec<u16>> {
        let mut made = Vec::new();
        let mut next = self.known.values().map(|(id, _)| *id).max().unwrap_or(PSEUDO);
        let mut ids = Vec::new();
        for (path, source) in exports {
            let key = key(path, source);
            if let Some((id, _)) = self.known.get(&key) {
                ids.push(*id);
                continue;
            }
            next = next.checked_add(1).ok_or_else(|| {
                io::Error::other(
                    "all 65,535 export numbers have been used; use a new state directory",
                )
            })?;
            self.known.insert(key.clone(), (next, path.escape_default().to_string()));
            made.push(key);
            ids.push(next);
        }
        if !made.is_empty()
            && let Err(error) = self.save()
        {
            made.iter().for_each(|key| drop(self.known.remove(key)));
            return Err(error);
        }
        Ok(ids)
    }

    fn save(&self) -> io::Result<()> {
        let Some(state_dir) = &self.state_dir else { return Ok(()) };
        let mut lines: Vec<(u16, &str, &str)> =
            self.known.iter().map(|(key, (id, path))| (*id, &**key, &**path)).collect();
        lines.sort_unstable();
        let text: String =
            lines.iter().map(|(id, key, path)| format!("{id} {key} {path}\n")).collect();
        let temporary = state_dir.join(format!("{FILE}.new"));
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, state_dir.join(FILE))?;
        File::open(state_dir)?.sync_all()
    }
}

fn key(path: &str, source: &Path) -> String {
    let mut hash = blake3::Hasher::new();
    hash.update(path.as_bytes()).update(&[0]).update(source.as_os_str().as_bytes());
    hash.finalize().to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_keeps_its_number_and_no_other_export_gets_it() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (("/a", Path::new("/srv/a")), ("/b", Path::new("/srv/b")));
        let moved = ("/a", Path::new("/srv/other"));
        assert_eq!(ExportIds::open(dir.path()).unwrap().of([a, b]).unwrap(), [1, 2]);
        assert_eq!(ExportIds::open(dir.path()).unwrap().of([b]).unwrap(), [2]);
        assert_eq!(ExportIds::open(dir.path()).unwrap().of([moved, b, a]).unwrap(), [3, 2, 1]);
        fs::write(dir.path().join(FILE), "one two\n").unwrap();
        let error = ExportIds::open(dir.path()).unwrap_err();
        assert!(error.to_string().contains("not an export list"), "{error}");
    }
}
