//! The load: each worker changes files through a mount of its own, first in turn, then all at once.

use super::Random;
use super::journal::{BLOCK, Handle, Line, Op, Tree, block_bytes};
use super::rpc::Nfs3;
use std::fs::{File, OpenOptions};
use std::io::{Error, Result, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// `O_SYNC` of Linux.
const O_SYNC: i32 = 0o4_010_000;

/// Where the load goes, and what it writes down.
#[derive(Debug)]
pub struct Load<'a> {
    /// The mounts of the exported directory, one for each worker.
    pub mounts: Vec<PathBuf>,
    /// The server.
    pub server: &'a str,
    /// The mapped device whose log is marked.
    pub device: &'a str,
    /// The journal's file.
    pub journal: &'a Path,
    /// Operations of each worker.
    pub operations: u32,
    /// Makes the load what it is.
    pub seed: u64,
}

/// The journal, and the mark that each of its lines gets.
struct Journal<'a> {
    file: File,
    lines: usize,
    device: &'a str,
}

struct Worker {
    number: usize,
    dir: PathBuf,
    tree: Tree,
    random: Random,
    done: u32,
    nfs: Nfs3,
    /// The handles of its directory and of `d` in it.
    dirs: Vec<Vec<u8>>,
}

/// Runs the load.
///
/// # Errors
/// An operation failed.
pub fn run(load: &Load<'_>) -> Result<()> {
    let file = File::create(load.journal)?;
    let journal = Mutex::new(Journal { file, lines: 0, device: load.device });
    let mut workers = Vec::new();
    for (number, mount) in load.mounts.iter().enumerate() {
        let (name, mut nfs) = (format!("w{number}"), Nfs3::connect(load.server)?);
        let dir = mount.join(&name);
        std::fs::create_dir(&dir)?;
        let root = nfs.mount("/")?.map_err(refused)?;
        let dirs = vec![nfs.lookup(&root, &name)?.map_err(refused)?];
        let random = Random::new(load.seed.wrapping_mul(31).wrapping_add(number as u64));
        let tree = Tree::default();
        workers.push(Worker { number, dir, tree, random, done: 0, nfs, dirs });
    }
    // Cuts begin behind this mark.
    journal.lock().map_err(|_| Error::other("a worker panicked"))?.mark()?;
    for _ in 0..load.operations / 2 {
        workers.iter_mut().try_for_each(|worker| worker.step(&journal))?;
    }
    std::thread::scope(|scope| {
        let work = |mut worker: Worker| {
            (worker.done..load.operations).try_for_each(|_| worker.step(&journal))
        };
        let threads: Vec<_> =
            workers.into_iter().map(|worker| scope.spawn(move || work(worker))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().map_err(|_| Error::other("a worker panicked"))?
        };
        threads.into_iter().try_for_each(join)
    })
}

fn refused(status: u32) -> Error {
    Error::other(format!("the server answers with status {status}"))
}

impl Journal<'_> {
    fn acknowledged(&mut self, line: &Line) -> Result<()> {
        writeln!(self.file, "{line}")?;
        self.lines += 1;
        self.mark()
    }

    /// Marks the log of the disk with the number of lines.
    fn mark(&self) -> Result<()> {
        let mut dmsetup = Command::new("/usr/sbin/dmsetup");
        dmsetup.args(["message", self.device, "0", "mark", &self.lines.to_string()]);
        match dmsetup.status()?.success() {
            true => Ok(()),
            false => Err(Error::other("dmsetup cannot mark the log")),
        }
    }
}

impl Worker {
    fn step(&mut self, journal: &Mutex<Journal<'_>>) -> Result<()> {
        self.done += 1;
        let op = self.tree.next_op(&mut self.random, self.done);
        self.execute(&op)
            .map_err(|error| Error::other(format!("worker {}: {op:?}: {error}", self.number)))?;
        self.tree.apply(&op);
        let made = match &op {
            Op::Mkdir(path, object) | Op::Create(path, object) | Op::Symlink(path, object) => {
                Some(self.handle(path, *object)?)
            }
            _ => None,
        };
        let line = Line { worker: self.number, op, made };
        journal.lock().map_err(|_| Error::other("a worker panicked"))?.acknowledged(&line)
    }

    fn handle(&mut self, path: &str, object: u32) -> Result<Handle> {
        let (dir, name) = path.split_once('/').map_or((0, path), |(_, name)| (1, name));
        let dir = self.dirs.get(dir).ok_or_else(|| Error::other("there is no such directory"))?;
        let handle = self.nfs.lookup(dir, name)?.map_err(refused)?;
        let fileid = self.nfs.fileid(&handle)?.map_err(refused)?;
        if path == "d" {
            self.dirs.push(handle.clone());
        }
        Ok(Handle { object, handle, fileid })
    }

    fn execute(&self, op: &Op) -> Result<()> {
        let at = |path: &String| self.dir.join(path);
        match op {
            Op::Mkdir(path, _) => std::fs::create_dir(at(path)),
            Op::Symlink(path, object) => std::os::unix::fs::symlink(format!("t{object}"), at(path)),
            Op::Create(path, _) => {
                let mut options = OpenOptions::new();
                options.write(true).create_new(true).mode(0o644).open(at(path)).map(drop)
            }
            Op::Write { path, first, count, version, stable } => {
                let mut options = OpenOptions::new();
                options.write(true).custom_flags(if *stable { O_SYNC } else { 0 });
                let file = options.open(at(path))?;
                let number = self.tree.names.get(path).map_or(0, |name| name.1);
                for block in *first..first + count {
                    let bytes = block_bytes(self.number, number, block, *version);
                    file.write_all_at(&bytes, u64::from(block) * BLOCK as u64)?;
                }
                if *stable { Ok(()) } else { file.sync_all() }
            }
            Op::Truncate(path, size) => {
                let file = OpenOptions::new().write(true).open(at(path))?;
                file.set_len(u64::from(*size) * BLOCK as u64)
            }
            Op::Chmod(path, mode) => {
                std::fs::set_permissions(at(path), std::fs::Permissions::from_mode(*mode))
            }
            Op::Rename(from, to) => std::fs::rename(at(from), at(to)),
            Op::Link(from, to) => std::fs::hard_link(at(from), at(to)),
            Op::Remove(path) => std::fs::remove_file(at(path)),
        }
    }
}
