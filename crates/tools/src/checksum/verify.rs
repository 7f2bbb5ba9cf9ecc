//! The check of files against a manifest.

use super::algorithm::Checksum;
use super::find::Finder;
use super::manifest::Entry;
use super::{Running, Summer};
use crate::failure::{Failure, Result};
use crate::location::Location;
use crate::mounts::Mounts;
use std::collections::VecDeque;

/// The result of the check of one file.
pub struct Checked {
    /// Its name in the manifest.
    pub name: Vec<u8>,
    /// What was found.
    pub verdict: Verdict,
}

/// What the check of a file found.
pub enum Verdict {
    /// It has the checksum of the manifest.
    Same,
    /// It has another one.
    Changed,
    /// It does not exist.
    Missing,
    /// It cannot be read, or changed while it was read.
    Unreadable(Failure),
}

/// A file that is being checked.
struct Pending {
    name: Vec<u8>,
    expected: Checksum,
    found: Found,
}

enum Found {
    Nothing,
    Unreadable(Failure),
    File(Running),
}

impl Pending {
    async fn wait(self) -> Checked {
        let verdict = match self.found {
            Found::Nothing => Verdict::Missing,
            Found::Unreadable(failure) => Verdict::Unreadable(failure),
            Found::File(running) => match running.wait().await {
                Ok((_, sum)) if sum == self.expected => Verdict::Same,
                Ok(_) => Verdict::Changed,
                Err(failure) => Verdict::Unreadable(failure),
            },
        };
        Checked { name: self.name, verdict }
    }
}

impl Summer {
    /// Checks the file of each entry, and gives the result to `report` in the order of the entries.
    /// Names are relative to `root`, or to the working directory.
    ///
    /// # Errors
    /// Those of `entries` and `report`, and that `root` is no directory. A file that cannot be read is a
    /// result like others.
    pub async fn verify(
        &self,
        mounts: &mut Mounts,
        root: Option<&Location>,
        mut entries: impl FnMut() -> Result<Option<Entry>>,
        mut report: impl FnMut(Checked) -> Result<()>,
    ) -> Result<()> {
        let mut finder = Finder::new(mounts, root);
        if let Some(root) = root {
            finder.enter(root).await?;
        }
        let mut ahead: VecDeque<Pending> = VecDeque::new();
        loop {
            while ahead.len() < self.jobs
                && let Some(Entry { name, checksum, algorithm }) = entries()?
            {
                let algorithm = algorithm.unwrap_or(self.algorithm);
                let found = match finder.find(&name).await {
                    Ok(Some((place, attr))) => Found::File(self.spawn(algorithm, place, attr)),
                    Ok(None) => Found::Nothing,
                    Err(failure) => Found::Unreadable(failure),
                };
                ahead.push_back(Pending { name, expected: checksum, found });
            }
            let Some(next) = ahead.pop_front() else { return Ok(()) };
            report(next.wait().await)?;
        }
    }
}
