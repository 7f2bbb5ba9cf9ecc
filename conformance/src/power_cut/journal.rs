//! What the load did, and what the disk must hold after each part of it.
//!
//! Objects (files, directories, symbolic links) of a worker have numbers. A block of a file names the
//! worker, the file, the block, and the version that wrote it. The journal has a line for each
//! acknowledged operation, in the order of the marks in the disk's log.

use super::Random;
use std::collections::BTreeMap;

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Most blocks of a file.
const MAX_BLOCKS: u32 = 12;
/// Names in each directory.
const NAMES: usize = 8;

/// An operation. Paths are relative to the worker's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Makes a directory, the object of this number.
    Mkdir(String, u32),
    /// Makes an empty file, which was not there.
    Create(String, u32),
    /// Makes a symbolic link.
    Symlink(String, u32),
    /// Writes blocks of a file, from the first on, in a version. `stable` writes one by O_SYNC, otherwise
    /// fsync follows.
    Write {
        /// The file.
        path: String,
        /// The first block.
        first: u32,
        /// How many.
        count: u32,
        /// What they get.
        version: u32,
        /// Whether each write is stable by itself.
        stable: bool,
    },
    /// Sets a file's size, in blocks.
    Truncate(String, u32),
    /// Sets a file's mode.
    Chmod(String, u32),
    /// Renames a file or link, in the place of one that may be there.
    Rename(String, String),
    /// Gives a file one more name.
    Link(String, String),
    /// Removes a file or link.
    Remove(String),
}

/// A name's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A directory.
    Dir,
    /// A file.
    File,
    /// A symbolic link.
    Link,
}

/// A file's attributes and data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Permissions.
    pub mode: u32,
    /// The version of each block; 0: zeros.
    pub blocks: Vec<u32>,
}

/// What a worker's directory holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The names, and the number of each one's object.
    pub names: BTreeMap<String, (Kind, u32)>,
    /// Files by number, also those without a name.
    pub files: BTreeMap<u32, Content>,
}

impl Tree {
    /// Applies an operation.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Mkdir(path, object) => self.name(path, (Kind::Dir, *object)),
            Op::Symlink(path, object) => self.name(path, (Kind::Link, *object)),
            Op::Create(path, object) => {
                self.name(path, (Kind::File, *object));
                self.files.insert(*object, Content { mode: 0o644, blocks: Vec::new() });
            }
            Op::Write { path, first, count, version, .. } => self.change(path, |content| {
                let blocks = &mut content.blocks;
                blocks.resize(blocks.len().max((first + count) as usize), 0);
                blocks[*first as usize..][..*count as usize].fill(*version);
            }),
            Op::Truncate(path, size) => {
                self.change(path, |content| content.blocks.resize(*size as usize, 0));
            }
            Op::Chmod(path, mode) => self.change(path, |content| content.mode = *mode),
            Op::Rename(from, to) => {
                if let Some(object) = self.names.remove(from) {
                    self.name(to, object);
                }
            }
            Op::Link(from, to) => {
                if let Some(&object) = self.names.get(from) {
                    self.name(to, object);
                }
            }
            Op::Remove(path) => drop(self.names.remove(path)),
        }
    }

    fn name(&mut self, path: &str, object: (Kind, u32)) {
        self.names.insert(path.to_string(), object);
    }

    fn change(&mut self, path: &str, change: impl FnOnce(&mut Content)) {
        let file = self.names.get(path).and_then(|(_, number)| self.files.get_mut(number));
        if let Some(file) = file {
            change(file);
        }
    }

    /// An operation that can be done now, the `number`th of its worker: new objects and versions get that number.
    pub fn next_op(&self, random: &mut Random, number: u32) -> Op {
        if !self.names.contains_key("d") {
            return Op::Mkdir("d".into(), number);
        }
        let files: Vec<&String> =
            self.names.iter().filter(|(_, (kind, _))| *kind == Kind::File).map(|n| n.0).collect();
        let free = |random: &mut Random| -> Option<String> {
            let (dir, from) = (["", "d/"][random.below(2)], random.below(NAMES));
            let mut names = (0..NAMES).map(|i| format!("{dir}n{}", (from + i) % NAMES));
            names.find(|name| !self.names.contains_key(name))
        };
        let leaves: Vec<&String> =
            self.names.iter().filter(|(_, (kind, _))| *kind != Kind::Dir).map(|n| n.0).collect();
        loop {
            let file = (!files.is_empty()).then(|| files[random.below(files.len())].clone());
            let leaf = (!leaves.is_empty()).then(|| leaves[random.below(leaves.len())].clone());
            let op = match (random.below(16), file, leaf) {
                (0..=2, ..) | (_, None, _) => free(random).map(|path| Op::Create(path, number)),
                (3, ..) => free(random).map(|path| Op::Symlink(path, number)),
                (4 | 5, Some(path), _) => {
                    let first = random.below(MAX_BLOCKS as usize) as u32;
                    Some(Op::Write { path, first, count: 1, version: number, stable: true })
                }
                (6..=8, Some(path), _) => {
                    let first = random.below(MAX_BLOCKS as usize / 2) as u32;
                    let count = 2 + random.below(MAX_BLOCKS as usize / 2 - 1) as u32;
                    Some(Op::Write { path, first, count, version: number, stable: false })
                }
                (9, Some(path), _) => {
                    Some(Op::Truncate(path, random.below(MAX_BLOCKS as usize) as u32))
                }
                (10, Some(path), _) => {
                    Some(Op::Chmod(path, [0o600, 0o640, 0o664, 0o700][random.below(4)]))
                }
                (11 | 12, _, Some(from)) => free(random).map(|to| Op::Rename(from, to)),
                // Over another file; over a name of the same one a rename does nothing.
                (13, Some(to), Some(from)) => {
                    let other = self.names.get(&from) != self.names.get(&to);
                    other.then_some(Op::Rename(from, to))
                }
                (14, Some(from), _) => free(random).map(|to| Op::Link(from, to)),
                (_, _, leaf) => leaf.map(Op::Remove),
            };
            if let Some(op) = op {
                return op;
            }
        }
    }
}

/// The bytes of a block in a version.
pub fn block_bytes(worker: usize, file: u32, block: u32, version: u32) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK];
    }
    let label = [worker as u32, file, block, version].map(u32::to_le_bytes).concat();
    label.repeat(BLOCK / label.len())
}

/// How a client names an object: by its handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    /// The object's number.
    pub object: u32,
    /// Its handle of NFSv3.
    pub handle: Vec<u8>,
    /// Its file number.
    pub fileid: u64,
}

/// An acknowledged operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Who did it.
    pub worker: usize,
    /// What was done.
    pub op: Op,
    /// The handle of what was made.
    pub made: Option<Handle>,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.worker)?;
        match &self.op {
            Op::Mkdir(path, object) => write!(f, "mkdir {path} {object}"),
            Op::Create(path, object) => write!(f, "create {path} {object}"),
            Op::Symlink(path, object) => write!(f, "symlink {path} {object}"),
            Op::Write { path, first, count, version, stable } => {
                write!(f, "write {path} {first} {count} {version} {}", u32::from(*stable))
            }
            Op::Truncate(path, size) => write!(f, "truncate {path} {size}"),
            Op::Chmod(path, mode) => write!(f, "chmod {path} {mode}"),
            Op::Rename(from, to) => write!(f, "rename {from} {to}"),
            Op::Link(from, to) => write!(f, "link {from} {to}"),
            Op::Remove(path) => write!(f, "remove {path}"),
        }?;
        if let Some(Handle { object, handle, fileid }) = &self.made {
            let hex: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
            write!(f, " ; {object} {fileid} {hex}")?;
        }
        Ok(())
    }
}

impl Line {
    /// Reads a line as it is displayed; `None`: it is none.
    pub fn parse(line: &str) -> Option<Self> {
        let (op, made) = line.split_once(" ; ").unwrap_or((line, ""));
        let words: Vec<&str> = op.split(' ').collect();
        let text = |i: usize| words.get(i).map(|word| (*word).to_string());
        let number = |i: usize| words.get(i)?.parse::<u32>().ok();
        let op = match *words.get(1)? {
            "mkdir" => Op::Mkdir(text(2)?, number(3)?),
            "create" => Op::Create(text(2)?, number(3)?),
            "symlink" => Op::Symlink(text(2)?, number(3)?),
            "write" => Op::Write {
                path: text(2)?,
                first: number(3)?,
                count: number(4)?,
                version: number(5)?,
                stable: number(6)? != 0,
            },
            "truncate" => Op::Truncate(text(2)?, number(3)?),
            "chmod" => Op::Chmod(text(2)?, number(3)?),
            "rename" => Op::Rename(text(2)?, text(3)?),
            "link" => Op::Link(text(2)?, text(3)?),
            "remove" => Op::Remove(text(2)?),
            _ => return None,
        };
        let made: Vec<&str> = made.split(' ').collect();
        let made = match made[..] {
            [object, fileid, hex] => Some(Handle {
                object: object.parse().ok()?,
                fileid: fileid.parse().ok()?,
                handle: (0..hex.len() / 2)
                    .map(|i| u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok())
                    .collect::<Option<_>>()?,
            }),
            _ => None,
        };
        Some(Self { worker: number(0)? as usize, op, made })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let (mut tree, mut random) = (Tree::default(), Random::new(3));
        let mut kinds = std::collections::HashSet::new();
        for number in 1..500 {
            let op = tree.next_op(&mut random, number);
            tree.apply(&op);
            kinds.insert(std::mem::discriminant(&op));
            let made = (number % 2 == 0).then(|| Handle {
                object: number,
                handle: vec![0, 1, 0xfe],
                fileid: 1 << 40,
            });
            let line = Line { worker: 2, op, made };
            assert_eq!(Line::parse(&line.to_string()), Some(line));
        }
        assert_eq!(kinds.len(), 9, "every operation is done");
        assert_eq!(Line::parse("0 frobnicate x"), None);
    }
}
