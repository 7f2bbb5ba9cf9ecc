//! Conformance of a server of version 4.2. Its READ_PLUS with RFC 7862 section 15.10: builds files
//! whose layout is known, reads them by raw READ_PLUS calls, and holds every reply against the rules.
//! Then its locks, stateids, directories, and what it does about clients that fall silent.
//!
//! The rules are the RFCs', and the slips that servers and clients have made with them: order,
//! contiguity, clipping, `eof`, offsets past the end, tiny counts, holes where data was written.
//!
//! 1. What is read is never trusted: each reply is compared with what was written, byte by byte.
//! 2. A server may choose to send data for a hole; that is a note, not a failure.

#![forbid(unsafe_code)]

mod directories;
mod leases;
mod locks;
mod rules;
mod stateids;

use std::sync::Arc;
use weir_client::{NfsFs, raw};
use weir_nfs::v4::op::read_plus::{ReadPlus, Segment};
use weir_vfs::{Access, Caller, Error, FileId, FileSystem, OpenFile, SetAttr, Source, WriteOp};

/// What one rule's examination came to, from good to bad.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The server keeps it.
    Pass,
    /// The server is within its rights, but could do better, or does not support it.
    Note(String),
    /// The server breaks it; what was asked and what came.
    Fail(String),
}

/// A rule, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule, in a few words.
    pub rule: &'static str,
    /// What became of it.
    pub verdict: Verdict,
}

impl Finding {
    /// Where the rule is written: `RFC 7862 15.10.3`, say.
    pub fn section(&self) -> &'static str {
        rules::section(self.rule)
    }
}

/// Examines the server's READ_PLUS in a directory of its own below the mount's root, which is
/// removed afterwards.
///
/// # Errors
/// The files could not be made, or the mount is not of version 4.2.
pub async fn read_plus(nfs: &Arc<NfsFs>) -> weir_client::Result<Vec<Finding>> {
    Examiner::begin(nfs).await?.examine(None).await
}

/// Examines the server's READ_PLUS, locks, stateids and directories likewise; `other` is another
/// mount of the same directory, somebody else to the server.
///
/// # Errors
/// As of [`read_plus`].
///
/// # Panics
/// Outside of a tokio runtime.
pub async fn all(nfs: &Arc<NfsFs>, other: &Arc<NfsFs>) -> weir_client::Result<Vec<Finding>> {
    Examiner::begin(nfs).await?.examine(Some(other)).await
}

/// Examines what becomes of the locks of a client that does not renew its lease, `silent`, and of
/// one that does, `nfs`; takes the server's lease and more. All three are mounts of one directory.
///
/// # Errors
/// As of [`read_plus`].
///
/// # Panics
/// Outside of a tokio runtime.
pub async fn leases(
    nfs: &Arc<NfsFs>,
    other: &Arc<NfsFs>,
    silent: &Arc<NfsFs>,
) -> weir_client::Result<Vec<Finding>> {
    let mut examiner = Examiner::begin(nfs).await?;
    let findings = examiner.leases(other, silent).await;
    examiner.clean_up(findings).await
}

struct Examiner<'a> {
    nfs: &'a Arc<NfsFs>,
    name: Vec<u8>,
    dir: FileId,
    made: Vec<Vec<u8>>,
}

/// A file, and every byte that it has.
struct Known {
    id: FileId,
    file: Arc<dyn OpenFile>,
    bytes: Vec<u8>,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Files alternate data and holes of these sizes.
const BLOCKS: [usize; 2] = [4 * KIB, 32 * KIB];

impl Examiner<'_> {
    async fn begin(nfs: &Arc<NfsFs>) -> weir_client::Result<Examiner<'_>> {
        let name = format!("weir-check-{:016x}", getrandom::u64().unwrap_or(0)).into_bytes();
        let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        let dir = nfs.mkdir(&Caller::Own, nfs.root(), &name, &set).await?.id;
        Ok(Examiner { nfs, name, dir, made: Vec::new() })
    }

    async fn examine(mut self, other: Option<&Arc<NfsFs>>) -> weir_client::Result<Vec<Finding>> {
        let findings = self.findings(other).await;
        self.clean_up(findings).await
    }

    /// Removes what was made; that this can be done is a rule, too.
    async fn clean_up(
        self,
        findings: weir_client::Result<Vec<Finding>>,
    ) -> weir_client::Result<Vec<Finding>> {
        let mut findings = findings?;
        let mut removed = Ok(());
        for file in &self.made {
            removed = removed.and(self.nfs.unlink(&Caller::Own, self.dir, file).await);
        }
        removed = removed.and(self.nfs.rmdir(&Caller::Own, self.nfs.root(), &self.name).await);
        let verdict = removed.map_or_else(|e| Verdict::Fail(e.to_string()), |()| Verdict::Pass);
        findings.push(Finding { rule: "what was made can be removed", verdict });
        let mut each: Vec<Finding> = Vec::new();
        for finding in findings {
            match each.iter_mut().find(|found| found.rule == finding.rule) {
                // Of a rule that was tried several times, the worst is told.
                Some(found) => found.verdict = found.verdict.clone().max(finding.verdict),
                None => each.push(finding),
            }
        }
        Ok(each)
    }

    async fn findings(&mut self, other: Option<&Arc<NfsFs>>) -> weir_client::Result<Vec<Finding>> {
        let Some(other) = other else { return self.rules().await };
        let mut findings = Vec::new();
        let mut add = |rule, part: weir_client::Result<Vec<Finding>>| match part {
            Ok(part) => findings.extend(part),
            // The other parts are examined all the same.
            Err(error) => {
                findings.push(Finding { rule, verdict: Verdict::Fail(error.to_string()) })
            }
        };
        add("READ_PLUS is examined to the end", self.rules().await);
        add("locks are examined to the end", self.locks(other).await);
        add("stateids are examined to the end", self.stateids().await);
        add("directories are examined to the end", self.directories().await);
        Ok(findings)
    }

    async fn rules(&mut self) -> weir_client::Result<Vec<Finding>> {
        let mut findings = Vec::new();
        let mut find = |rule, verdict| findings.push(Finding { rule, verdict });
        let data = self.make("data", &[(true, MIB + 123)]).await?;
        match data.ask(0, 4 * KIB as u64).await {
            Err(error) if error.to_vfs() == Error::NotSupported => {
                find("READ_PLUS is served", Verdict::Note(error.to_string()));
                return Ok(findings);
            }
            Err(error) => {
                find("READ_PLUS is served", Verdict::Fail(error.to_string()));
                return Ok(findings);
            }
            Ok(_) => find("READ_PLUS is served", Verdict::Pass),
        }
        find("data comes back, in any counts", data.in_steps(&STEPS).await);
        let empty = self.make("empty", &[]).await?;
        let at_ends = [0, 1, 1 << 40];
        find("an empty file is at its end everywhere", empty.at(&at_ends, 4096).await);
        let hole = self.make("hole", &[(false, 8 * MIB)]).await?;
        find(
            "a hole reads as zeros, in any counts",
            hole.in_steps(&[4 * KIB, 64 * KIB, MIB]).await,
        );
        find("a hole comes as a hole", hole.is_hole(0, MIB).await);
        find("a hole comes whole, past the request", hole.is_hole_to(4096, 4096, 8 * MIB).await);
        for (name, block) in ["4k", "32k"].into_iter().zip(BLOCKS) {
            for first in [true, false] {
                let layout: Vec<_> = (0..64).map(|i| ((i % 2 == 0) == first, block)).collect();
                let name = format!("mixed-{name}{}", if first { 'd' } else { 'h' });
                let mixed = self.make(&name, &layout).await?;
                let rule = "alternating segments are in order, contiguous, and right";
                find(rule, mixed.in_steps(&[block / 2, block, block + 1, MIB]).await);
                let b = block as u64;
                let offsets = [1, b - 1, b, b + 1, 2 * b - 1, 3 * b + 7];
                let rule = "requests that begin or end within a segment are clipped";
                find(rule, mixed.at(&offsets, block as u64 / 2 + 3).await);
                find("counts of a byte or two", mixed.at(&offsets, 2).await);
            }
        }
        let blocks = (0..512).map(|i| (i % 2 == 0, 4 * KIB)).chain([(true, MIB + 777)]);
        let large = self.make("large", &blocks.collect::<Vec<_>>()).await?;
        // A reply that is longer than the session allows is refused by the client.
        let rule = "a reply stays within the session's limit, whatever the count";
        find(rule, large.in_steps(&[u32::MAX as usize]).await);
        let tail = self.make("tail", &[(true, 5000), (false, 70_001)]).await?;
        find("a hole at the end ends with the file", tail.in_steps(&STEPS).await);
        let size = tail.bytes.len() as u64;
        let rule = "eof is true from the last byte on, and not before";
        find(rule, tail.at(&[size - 4097, size - 4096, size - 1], 4096).await);
        let rule = "at or past the end: no segments, eof, no error";
        find(rule, tail.at(&[size, size + 1, 1 << 40], 4096).await);
        find("a count of 0 is no error", tail.at(&[0, 5000, size], 0).await);
        find("the largest offsets do no harm", tail.far().await);
        find("zeros that were written read as zeros", self.zeros().await?);
        find("data within a hole is data at once", self.filled_hole().await?);
        find("a punched hole reads as zeros at once", self.punched().await?);
        find("what was cut off does not come back", self.regrown().await?);
        Ok(findings)
    }

    /// Makes a file of data and holes of the given lengths.
    async fn make(&mut self, name: &str, layout: &[(bool, usize)]) -> weir_client::Result<Known> {
        let id = self.create(name).await?;
        let file = self.nfs.open(&Caller::Own, id, Access::READ | Access::WRITE).await?;
        let mut known = Known { id, file, bytes: Vec::new() };
        let size: usize = layout.iter().map(|(_, len)| len).sum();
        known.file.set_size(size as u64).await?;
        known.bytes.resize(size, 0);
        let mut at = 0;
        for &(data, len) in layout {
            if data {
                // No byte is zero, and neighbouring pages differ.
                let bytes = (at..at + len).map(|i| (i / 509 + i) as u8 | 1).collect::<Vec<_>>();
                known.write(at, &bytes).await?;
            }
            at += len;
        }
        Ok(known)
    }

    async fn create(&mut self, name: &str) -> weir_client::Result<FileId> {
        let name = name.as_bytes().to_vec();
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let made = self.nfs.create(&Caller::Own, self.dir, &name, &set, true).await?;
        self.made.push(name);
        Ok(made.attr.id)
    }

    async fn zeros(&mut self) -> weir_client::Result<Verdict> {
        let mut file = self.make("zeros", &[(true, 64 * KIB)]).await?;
        file.write(16 * KIB, &vec![0; 32 * KIB]).await?;
        Ok(file.in_steps(&[4 * KIB, 64 * KIB]).await)
    }

    /// A hole is filled block by block; after each, no reply may say that there is none.
    async fn filled_hole(&mut self) -> weir_client::Result<Verdict> {
        let mut file = self.make("filled", &[(false, MIB)]).await?;
        for block in (0..256).map(|i| i * 37 % 256) {
            let at = block * 4 * KIB;
            let bytes = [block as u8 | 1; 4 * KIB];
            // Reads of the neighbourhood are under way while it changes.
            let both = futures_util::future::join(
                file.ask(at.saturating_sub(8 * KIB) as u64, 24 * KIB as u64),
                file.write_bytes(at, &bytes),
            );
            let (before, written) = both.await;
            before?;
            written?;
            file.bytes[at..at + 4 * KIB].fill(block as u8 | 1);
            let verdict = file.at(&[at as u64], 4 * KIB as u64).await;
            if verdict != Verdict::Pass {
                return Ok(verdict);
            }
        }
        Ok(file.in_steps(&[64 * KIB]).await)
    }

    async fn punched(&mut self) -> weir_client::Result<Verdict> {
        let mut file = self.make("punched", &[(true, 256 * KIB)]).await?;
        match file.file.punch_hole(64 * KIB as u64 + 5, 100_000).await {
            Ok(()) => {}
            Err(Error::NotSupported) => {
                return Ok(Verdict::Note("the server has no DEALLOCATE".into()));
            }
            Err(error) => return Err(error.into()),
        }
        file.bytes[64 * KIB + 5..64 * KIB + 5 + 100_000].fill(0);
        Ok(file.in_steps(&[4 * KIB, 100_000, MIB]).await)
    }

    async fn regrown(&mut self) -> weir_client::Result<Verdict> {
        let mut file = self.make("regrown", &[(true, 100_000)]).await?;
        file.file.set_size(10_001).await?;
        file.file.set_size(50_000).await?;
        file.bytes.truncate(10_001);
        file.bytes.resize(50_000, 0);
        Ok(file.in_steps(&[4 * KIB, MIB]).await)
    }
}

const STEPS: [usize; 5] = [511, 4 * KIB, 64 * KIB, MIB, 4 * MIB];

impl Known {
    async fn write(&mut self, at: usize, bytes: &[u8]) -> weir_client::Result<()> {
        self.write_bytes(at, bytes).await?;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    async fn write_bytes(&self, at: usize, bytes: &[u8]) -> weir_client::Result<()> {
        let (tx, rx) = tokio::sync::oneshot::channel();
        let done = move |_: Box<dyn Source>, result| {
            // Whoever asked may have gone.
            let _ = tx.send(result);
        };
        self.file.submit_write(WriteOp::new(at as u64, Box::new(bytes.to_vec()), done));
        rx.await.unwrap_or(Err(Error::Io)).map_err(Into::into)
    }

    async fn ask(&self, offset: u64, count: u64) -> weir_client::Result<ReadPlus> {
        raw::read_plus(&*self.file, offset, count.min(u32::MAX.into()) as u32).await
    }

    /// Reads the whole file in steps of each of the sizes.
    async fn in_steps(&self, steps: &[usize]) -> Verdict {
        for &step in steps {
            let mut offset = 0;
            loop {
                let end = match self.judged(offset, step as u64).await {
                    Ok(end) => end,
                    Err(fault) => return Verdict::Fail(fault),
                };
                if end >= self.bytes.len() as u64 {
                    break;
                }
                offset = end.min(offset + step as u64);
            }
        }
        Verdict::Pass
    }

    async fn at(&self, offsets: &[u64], count: u64) -> Verdict {
        for &offset in offsets {
            if let Err(fault) = self.judged(offset, count).await {
                return Verdict::Fail(fault);
            }
        }
        Verdict::Pass
    }

    async fn judged(&self, offset: u64, count: u64) -> Result<u64, String> {
        let asked = |fault: String| format!("{count} bytes at {offset}: {fault}");
        let reply = self.ask(offset, count).await.map_err(|e| asked(e.to_string()))?;
        judge(&reply, &self.bytes, offset, count).map_err(asked)
    }

    async fn is_hole(&self, offset: u64, count: usize) -> Verdict {
        match self.ask(offset, count as u64).await {
            Err(error) => Verdict::Fail(error.to_string()),
            Ok(reply) if matches!(reply.segments.0.first(), Some(Segment::Hole(_))) => {
                Verdict::Pass
            }
            Ok(_) => Verdict::Note("it comes as data, every byte of it".into()),
        }
    }

    async fn is_hole_to(&self, offset: u64, count: u64, end: usize) -> Verdict {
        match self.ask(offset, count).await.as_ref().map(|reply| reply.segments.0.last()) {
            Err(error) => Verdict::Fail(error.to_string()),
            Ok(Some(Segment::Hole(hole))) if hole.offset + hole.length == end as u64 => {
                Verdict::Pass
            }
            Ok(_) => Verdict::Note("each request is told of its own part only".into()),
        }
    }

    async fn far(&self) -> Verdict {
        for offset in [i64::MAX as u64 - 4095, i64::MAX as u64, u64::MAX - 4095, u64::MAX] {
            match self.ask(offset, 4096).await {
                Ok(reply) if reply.eof && reply.segments.0.is_empty() => {}
                Ok(_) => return Verdict::Fail(format!("something is said to be at {offset}")),
                Err(error) if matches!(error.to_vfs(), Error::Invalid | Error::TooBig) => {}
                Err(error) => return Verdict::Fail(format!("at {offset}: {error}")),
            }
        }
        Verdict::Pass
    }
}

/// Holds a reply against the rules and the file's `bytes`; where the reply ends, or what is wrong.
fn judge(reply: &ReadPlus, bytes: &[u8], offset: u64, count: u64) -> Result<u64, String> {
    let (size, limit) = (bytes.len() as u64, offset.saturating_add(count));
    let mut at = offset;
    for (index, segment) in reply.segments.0.iter().enumerate() {
        let (start, len) = match segment {
            Segment::Data(data) => (data.offset, data.data.len() as u64),
            Segment::Hole(hole) => (hole.offset, hole.length),
        };
        let end = start.checked_add(len).ok_or("a segment ends past the largest offset")?;
        match segment {
            Segment::Data(data) => {
                if start != at {
                    return Err(format!("data at {start}, where {at} was to come"));
                }
                if end > limit {
                    return Err(format!("data to {end}, past the request"));
                }
                if len == 0 && count > 0 {
                    return Err("a data segment without a byte".into());
                }
                if bytes.get(start as usize..end as usize) != Some(&data.data.to_bytes()[..]) {
                    return Err(format!("wrong bytes in {start}..{end}"));
                }
            }
            Segment::Hole(_) => {
                if start != at && (index > 0 || start > at) {
                    return Err(format!("a hole at {start}, where {at} was to come"));
                }
                if end <= at {
                    return Err(format!("a hole that ends at {end}, before {at}"));
                }
                if end > size {
                    return Err(format!("a hole to {end}, past the end of the file at {size}"));
                }
                if bytes[at as usize..end as usize].iter().any(|b| *b != 0) {
                    return Err(format!("a hole at {at}..{end}, where data was written"));
                }
            }
        }
        at = end;
    }
    if reply.eof && at.max(offset) < size {
        return Err(format!("eof at {at}, but the file ends at {size}"));
    }
    if !reply.eof && limit >= size && at >= size {
        return Err(format!("no eof, but the file ends at {size}"));
    }
    if at == offset && !reply.eof && count > 0 {
        return Err("neither a segment nor eof".into());
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_nfs::v4::op::read_plus::{DataSegment, HoleSegment, Segments};
    use weir_xdr::Bytes;

    fn reply(eof: bool, segments: Vec<Segment>) -> ReadPlus {
        ReadPlus { eof, segments: Segments(segments) }
    }

    fn data(offset: u64, bytes: &[u8]) -> Segment {
        Segment::Data(DataSegment { offset, data: Bytes::copy_from_slice(bytes).into() })
    }

    fn hole(offset: u64, length: u64) -> Segment {
        Segment::Hole(HoleSegment { offset, length })
    }

    #[test]
    fn right_replies_pass_and_wrong_ones_are_named() {
        let file = [1, 2, 3, 4, 0, 0, 0, 0, 5, 6];
        let good = reply(true, vec![data(2, &[3, 4]), hole(4, 4), data(8, &[5, 6])]);
        assert_eq!(judge(&good, &file, 2, 100), Ok(10));
        assert_eq!(judge(&reply(false, vec![hole(4, 4)]), &file, 5, 1), Ok(8));
        let wrong: [(ReadPlus, u64, u64, &str); 8] = [
            (reply(false, vec![data(3, &[4])]), 2, 4, "was to come"),
            (reply(false, vec![data(2, &[9])]), 2, 4, "wrong bytes"),
            (reply(false, vec![data(2, &[3, 4])]), 2, 1, "past the request"),
            (reply(false, vec![hole(2, 6)]), 2, 4, "where data was written"),
            (reply(false, vec![hole(4, 2), hole(5, 3)]), 4, 4, "was to come"),
            (reply(true, vec![data(2, &[3])]), 2, 1, "the file ends at 10"),
            (reply(false, vec![data(8, &[5, 6])]), 8, 2, "no eof"),
            (reply(false, vec![]), 2, 4, "neither"),
        ];
        for (reply, offset, count, fault) in wrong {
            let got = judge(&reply, &file, offset, count).unwrap_err();
            assert!(got.contains(fault), "{got} for {fault}");
        }
    }
}
