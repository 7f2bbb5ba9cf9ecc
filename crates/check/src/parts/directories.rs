//! Directories in pieces (RFC 8881 section 18.23): cookies, small replies, changes in between.

use crate::{Examiner, Finding, Verdict};
use std::collections::BTreeMap;
use weir_vfs::{Caller, DirEntry, FileId, FileSystem, SetAttr};

/// Files in the directory: more than fit in the smaller replies by far.
const FILES: usize = 150;
/// More entries than the directory can have told without end.
const MOST_ENTRIES: usize = 10 * FILES;

impl Examiner<'_> {
    pub(crate) async fn directories(&mut self) -> weir_client::Result<Vec<Finding>> {
        let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        let dir = self.nfs.mkdir(&Caller::Own, self.dir, b"many", &set).await?.id;
        let findings = self.listings(dir).await;
        for index in 0..FILES {
            // Some are gone by now.
            let _ = self.nfs.unlink(&Caller::Own, dir, &name(index)).await;
        }
        self.nfs.rmdir(&Caller::Own, self.dir, b"many").await?;
        findings
    }

    async fn listings(&self, dir: FileId) -> weir_client::Result<Vec<Finding>> {
        let mut findings = Vec::new();
        let mut find = |rule, verdict| findings.push(Finding { rule, verdict });
        find("an empty directory ends at once", judge(&self.list(dir, 0, 100).await?, 0..0));
        for index in 0..FILES {
            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            self.nfs.create(&Caller::Own, dir, &name(index), &set, true).await?;
        }
        let whole = self.list(dir, 0, 1000).await?;
        find("each name is told once", judge(&whole, 0..FILES));
        let mut verdict = Verdict::Pass;
        for count in [1, 2, 7, 50] {
            if verdict == Verdict::Pass {
                verdict = judge(&self.list(dir, 0, count).await?, 0..FILES);
            }
        }
        find("each name is told once, in replies of any size", verdict);
        let reserved = whole.iter().find(|entry| entry.cookie <= 2);
        let verdict = match reserved {
            Some(entry) => Verdict::Note(format!("an entry has cookie {}", entry.cookie)),
            None => Verdict::Pass,
        };
        find("no entry has a cookie of 0 to 2", verdict);
        let mut verdict = Verdict::Pass;
        for (index, entry) in whole.iter().enumerate().step_by(FILES / 10) {
            let rest = self.list(dir, entry.cookie, 30).await?;
            let expected: Vec<_> = whole[index + 1..].iter().map(|entry| &entry.name).collect();
            if !rest.iter().map(|entry| &entry.name).eq(expected) {
                verdict = Verdict::Fail(format!("after the cookie of entry {index} others come"));
                break;
            }
        }
        find("a listing goes on after any cookie", verdict);
        // Names that are listed already go, and some that are not.
        let first = self.nfs.readdir(&Caller::Own, dir, 0, 40, true).await?.entries;
        let last = first.last().map_or(0, |entry| entry.cookie);
        let gone = |index: usize| index.is_multiple_of(3);
        for index in (0..FILES).filter(|index| gone(*index)) {
            self.nfs.unlink(&Caller::Own, dir, &name(index)).await?;
        }
        let mut told = first;
        told.extend(self.list(dir, last, 40).await?);
        told.retain(|entry| !(0..FILES).any(|index| gone(index) && entry.name == name(index)));
        let verdict = judge(&told, (0..FILES).filter(|index| !gone(*index)));
        find("names that stay are told once while others are removed", verdict);
        Ok(findings)
    }

    /// The entries after a cookie, but for the directory itself and the one above, by so many.
    async fn list(
        &self,
        dir: FileId,
        mut cookie: u64,
        count: usize,
    ) -> weir_client::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        loop {
            let page = self.nfs.readdir(&Caller::Own, dir, cookie, count, true).await?;
            match page.entries.last() {
                Some(last) => cookie = last.cookie,
                None => return Ok(entries),
            }
            entries.extend(page.entries);
            if page.eof || entries.len() > MOST_ENTRIES {
                return Ok(entries);
            }
        }
    }
}

fn name(index: usize) -> Vec<u8> {
    format!("file number {index}").into_bytes()
}

/// Whether the files of these numbers are there, each once, and no others.
fn judge(entries: &[DirEntry], expected: impl IntoIterator<Item = usize>) -> Verdict {
    let mut told: BTreeMap<&[u8], usize> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
        *told.entry(&entry.name).or_default() += 1;
    }
    for index in expected {
        match told.remove(&name(index)[..]) {
            Some(1) => {}
            Some(times) => return Verdict::Fail(format!("file {index} is told {times} times")),
            None => return Verdict::Fail(format!("file {index} is not told")),
        }
    }
    match told.keys().next() {
        Some(name) => Verdict::Fail(format!("{} is told", String::from_utf8_lossy(name))),
        None => Verdict::Pass,
    }
}
