//! Directories read in pieces (RFC 8881 section 18.23): cookies, small replies, changes in between.

use crate::examiner::Examiner;
use crate::rule::{Rule, rule};
use crate::verdict::{Result, Verdict};
use std::collections::BTreeMap;
use weir_vfs::{Caller, DirEntry, FileId, FileSystem, ReaddirRequest};

pub(crate) const RULES: &[Rule] = &[
    rule!(
        "a listing of an empty directory ends in its first reply",
        "RFC 8881 18.23.3",
        "eof",
        empty
    ),
    rule!("READDIR returns each name once", "RFC 8881 18.23.3", "150 names", once),
    rule!(
        "READDIR returns each name once, in replies of any size",
        "RFC 8881 18.23.3",
        "1, 2, 7 and 50 names at a time",
        once_in_any_size
    ),
    rule!(
        "no entry has a cookie of 0 to 2",
        "RFC 8881 18.23.3",
        "otherwise a note: clients must not rely on it",
        cookies
    ),
    rule!(
        "a listing continues after any cookie",
        "RFC 8881 18.23.3",
        "from every fifteenth entry on: the same rest",
        from_any_cookie
    ),
    rule!(
        "remaining names are returned once while others are removed",
        "RFC 8881 18.23.3",
        "a third of the names removed during a listing",
        while_others_go
    ),
];

/// Files in the directory: many more than fit in the smaller replies.
const FILES: usize = 150;
/// Number of entries after which the listing counts as endless.
const MOST_ENTRIES: usize = 10 * FILES;

async fn empty(examiner: &mut Examiner) -> Result<Verdict> {
    let (dir, _) = examiner.make_dir("empty").await?;
    Ok(judge(&examiner.list(dir, 0, 100).await?, 0..0))
}

async fn once(examiner: &mut Examiner) -> Result<Verdict> {
    let dir = examiner.many().await?;
    Ok(judge(&examiner.list(dir, 0, 1000).await?, 0..FILES))
}

async fn once_in_any_size(examiner: &mut Examiner) -> Result<Verdict> {
    let dir = examiner.many().await?;
    for count in [1, 2, 7, 50] {
        let verdict = judge(&examiner.list(dir, 0, count).await?, 0..FILES);
        if verdict != Verdict::Pass {
            return Ok(verdict);
        }
    }
    Ok(Verdict::Pass)
}

async fn cookies(examiner: &mut Examiner) -> Result<Verdict> {
    let dir = examiner.many().await?;
    let whole = examiner.list(dir, 0, 1000).await?;
    Ok(match whole.iter().find(|entry| entry.cookie <= 2) {
        Some(entry) => Verdict::Note(format!("an entry has cookie {}", entry.cookie)),
        None => Verdict::Pass,
    })
}

async fn from_any_cookie(examiner: &mut Examiner) -> Result<Verdict> {
    let dir = examiner.many().await?;
    let whole = examiner.list(dir, 0, 1000).await?;
    for (index, entry) in whole.iter().enumerate().step_by(FILES / 10) {
        let rest = examiner.list(dir, entry.cookie, 30).await?;
        let expected: Vec<_> = whole[index + 1..].iter().map(|entry| &entry.name).collect();
        if !rest.iter().map(|entry| &entry.name).eq(expected) {
            return Ok(Verdict::Fail(format!("after the cookie of entry {index} others come")));
        }
    }
    Ok(Verdict::Pass)
}

/// Remove names that were already listed, and some that were not.
async fn while_others_go(examiner: &mut Examiner) -> Result<Verdict> {
    let dir = examiner.many().await?;
    let first = examiner
        .ours
        .readdir(&Caller::Own, ReaddirRequest { dir, cookie: 0, max_entries: 40, with_attr: true })
        .await?
        .entries;
    let last = first.last().map_or(0, |entry| entry.cookie);
    let gone = |index: usize| index.is_multiple_of(3);
    // This is the last rule of the part, so no other needs the directory.
    examiner.many = None;
    for index in (0..FILES).filter(|index| gone(*index)) {
        examiner.ours.unlink(&Caller::Own, dir.entry(&name(index))).await?;
    }
    let mut told = first;
    told.extend(examiner.list(dir, last, 40).await?);
    told.retain(|entry| !(0..FILES).any(|index| gone(index) && entry.name == name(index)));
    Ok(judge(&told, (0..FILES).filter(|index| !gone(*index))))
}

impl Examiner {
    /// A directory of [`FILES`] files, created once.
    async fn many(&mut self) -> Result<FileId> {
        if let Some(dir) = self.many {
            return Ok(dir);
        }
        let (dir, _) = self.make_dir("many").await?;
        for index in 0..FILES {
            self.fill(dir, &name(index)).await?;
        }
        self.many = Some(dir);
        Ok(dir)
    }

    /// The entries after a cookie except `.` and `..`, read in pieces of this size.
    async fn list(&self, dir: FileId, mut cookie: u64, count: usize) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        loop {
            let page = self
                .ours
                .readdir(
                    &Caller::Own,
                    ReaddirRequest { dir, cookie, max_entries: count, with_attr: true },
                )
                .await?;
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

/// Checks that the files with these numbers are listed once each, and no others.
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
