//! What a cut left, beside what was acknowledged before it.

use super::journal::{BLOCK, Content, Kind, Line, Tree, block_bytes};
use super::rpc::Nfs3;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Result};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes that a disk writes as a whole.
const SECTOR: usize = 512;

/// A worker's part of the journal, around a cut.
struct Window<'a> {
    worker: usize,
    lines: Vec<&'a Line>,
    /// Its lines that were acknowledged before the cut.
    acknowledged: usize,
    /// What its directory holds after those, and after each one that may have begun.
    states: Vec<Tree>,
}

/// What is found under a name.
#[derive(Debug)]
struct Seen {
    kind: Kind,
    ino: u64,
}

/// Compares the directory `export` with the journal: `before` lines were acknowledged before the cut, and `behind`
/// when the first mark behind it was made. Returns what is wrong.
///
/// # Errors
/// The directory cannot be read.
pub fn disk(journal: &[Line], before: usize, behind: usize, export: &Path) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for window in windows(journal, before, behind) {
        let dir = export.join(format!("w{}", window.worker));
        let seen = read_tree(&dir)?;
        if !window.states.iter().any(|state| window.has_names(state, &seen)) {
            let wanted: Vec<_> = window.states.iter().map(|state| &state.names).collect();
            wrong.push(format!(
                "{}: the names are {seen:?}, none of {wanted:?}, after {:#?}",
                dir.display(),
                window.acknowledged_ops(),
            ));
            continue;
        }
        for (path, (_, number)) in window.settled() {
            if let Some(file) = window.states[0].files.get(&number) {
                let states = window.states.iter().filter_map(|state| state.files.get(&number));
                let problem = compare(&dir.join(&path), window.worker, number, file, states)?;
                wrong.extend(problem.map(|problem| format!("{}/{path}: {problem}", dir.display())));
            }
        }
    }
    Ok(wrong)
}

/// Tries the handles that were given out before the cut at the server: those of files that must be there name them,
/// and those of files that are gone name none. Returns what is wrong, and how many were tried.
///
/// # Errors
/// The server does not answer.
pub fn handles(
    journal: &[Line],
    before: usize,
    behind: usize,
    server: &str,
) -> Result<(Vec<String>, usize)> {
    let (mut nfs, mut wrong, mut tried) = (Nfs3::connect(server)?, Vec::new(), 0);
    for window in windows(journal, before, behind) {
        let has = |state: &Tree, object: u32| state.names.values().any(|name| name.1 == object);
        for line in &window.lines[..window.acknowledged] {
            let Some(made) = &line.made else { continue };
            let (first, rest) = window.states.split_first().unwrap_or((&EMPTY, &[]));
            let (stays, stayed) = (has(first, made.object), |s: &Tree| has(s, made.object));
            if rest.iter().any(|state| stayed(state) != stays) {
                continue;
            }
            tried += 1;
            let found = nfs.fileid(&made.handle)?;
            // NFS3ERR_STALE (RFC 1813 section 2.6).
            let wanted = if stays { Ok(made.fileid) } else { Err(70) };
            if found != wanted {
                wrong.push(format!("the handle of {line}: {found:?}, not {wanted:?}"));
            }
        }
    }
    Ok((wrong, tried))
}

static EMPTY: Tree = Tree { names: BTreeMap::new(), files: BTreeMap::new() };

fn windows(journal: &[Line], before: usize, behind: usize) -> Vec<Window<'_>> {
    let workers: BTreeSet<usize> = journal.iter().map(|line| line.worker).collect();
    let window = |worker| {
        let of_worker = |lines: &'_ [Line]| lines.iter().filter(|l| l.worker == worker).count();
        let lines: Vec<&Line> = journal.iter().filter(|line| line.worker == worker).collect();
        let acknowledged = of_worker(&journal[..before]);
        let begun = (of_worker(&journal[..behind.max(before)]) + 1).min(lines.len());
        let mut tree = Tree::default();
        lines[..acknowledged].iter().for_each(|line| tree.apply(&line.op));
        let mut states = vec![tree.clone()];
        for line in &lines[acknowledged..begun] {
            tree.apply(&line.op);
            states.push(tree.clone());
        }
        Window { worker, lines, acknowledged, states }
    };
    workers.into_iter().map(window).collect()
}

impl Window<'_> {
    /// The operations that were acknowledged, for a message.
    fn acknowledged_ops(&self) -> Vec<String> {
        self.lines[..self.acknowledged].iter().map(ToString::to_string).collect()
    }

    /// Whether what is seen are a state's names, each of the object that it has there.
    fn has_names(&self, state: &Tree, seen: &BTreeMap<String, Seen>) -> bool {
        let begun =
            &self.lines[..(self.acknowledged + self.states.len() - 1).min(self.lines.len())];
        let known = |object: u32| {
            begun.iter().filter_map(|line| line.made.as_ref()).find(|made| made.object == object)
        };
        let fits = |(path, (kind, object)): (&String, &(Kind, u32))| {
            seen.get(path).is_some_and(|seen| {
                seen.kind == *kind && known(*object).is_none_or(|made| made.fileid == seen.ino)
            })
        };
        state.names.len() == seen.len() && state.names.iter().all(fits)
    }

    /// The names that have the same object in all states.
    fn settled(&self) -> Vec<(String, (Kind, u32))> {
        let (first, rest) = self.states.split_first().unwrap_or((&EMPTY, &[]));
        let same = |path: &String| rest.iter().all(|s| s.names.get(path) == first.names.get(path));
        let names = first.names.iter().filter(|(path, _)| same(path));
        names.map(|(path, name)| (path.clone(), *name)).collect()
    }
}

fn read_tree(dir: &Path) -> Result<BTreeMap<String, Seen>> {
    let mut seen = BTreeMap::new();
    for prefix in ["", "d/"] {
        let entries = match std::fs::read_dir(dir.join(prefix)) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let meta = entry.metadata()?;
            let kind = match meta.file_type() {
                kind if kind.is_dir() => Kind::Dir,
                kind if kind.is_symlink() => Kind::Link,
                _ => Kind::File,
            };
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            seen.insert(name, Seen { kind, ino: meta.ino() });
        }
    }
    Ok(seen)
}

/// What is wrong with a file that was like `file` before the cut, and may have become each of `states`.
fn compare<'a>(
    path: &Path,
    worker: usize,
    number: u32,
    file: &Content,
    states: impl Iterator<Item = &'a Content> + Clone,
) -> Result<Option<String>> {
    let mut bytes = Vec::new();
    let mut opened = File::open(path)?;
    let mode = opened.metadata()?.mode() & 0o7777;
    opened.read_to_end(&mut bytes)?;
    if !states.clone().any(|state| state.mode == mode) {
        return Ok(Some(format!("mode {mode:o}, not {:o}", file.mode)));
    }
    let sizes = || states.clone().map(|state| state.blocks.len() * BLOCK);
    let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    if !(least..=most).contains(&bytes.len()) {
        return Ok(Some(format!("{} bytes, not {}", bytes.len(), file.blocks.len() * BLOCK)));
    }
    for (block, have) in bytes.chunks(BLOCK).enumerate() {
        let version = |state: &Content| state.blocks.get(block).copied().unwrap_or(0);
        let versions: BTreeSet<u32> = states.clone().map(version).collect();
        let wanted = versions.iter().map(|&v| block_bytes(worker, number, block as u32, v));
        let wanted: Vec<Vec<u8>> = wanted.collect();
        for (i, sector) in have.chunks(SECTOR).enumerate() {
            let is = |bytes: &Vec<u8>| bytes[i * SECTOR..].starts_with(sector);
            if !wanted.iter().any(is) {
                let label = &sector[..sector.len().min(16)];
                return Ok(Some(format!(
                    "sector {i} of block {block} begins with {label:?}, versions are {versions:?}"
                )));
            }
        }
    }
    Ok(None)
}
