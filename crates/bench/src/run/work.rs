//! The commands, and the ways to run them.

use crate::process::{self, is_installed};
use std::ffi::OsString;
use std::path::PathBuf;
use weir_tools::failure::Result;

/// A command that reads much, or copies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) name: &'static str,
    /// For `sh`: `$1` is the directory of data, `$2` an empty one, `$3` the database.
    script: &'static str,
    /// It reads the database, not the directory.
    pub(super) is_of_database: bool,
    /// It reads the directory's large file only.
    pub(super) is_of_large_file: bool,
    /// It writes what it reads.
    pub(super) writes: bool,
}

/// The large file of the directory.
pub(super) const LARGE: &str = "large";

const READER: Work =
    Work { name: "", script: "", is_of_database: false, is_of_large_file: false, writes: false };
const COPIER: Work = Work { writes: true, ..READER };

impl Work {
    pub(super) const ALL: [Self; 9] = [
        Self { name: "tar", script: "tar -C \"$1\" -cf \"$2/tar\" .", ..COPIER },
        Self { name: "cp", script: "cp -r \"$1/.\" \"$2\"", ..COPIER },
        Self {
            name: "dd",
            script: "dd if=\"$1/large\" of=\"$2/large\" bs=1M status=none $FLAGS",
            is_of_large_file: true,
            ..COPIER
        },
        Self { name: "rsync", script: "rsync -a \"$1/\" \"$2\"", ..COPIER },
        Self {
            name: "restic",
            script: "export RESTIC_PASSWORD=x && restic -q --no-cache -r \"$2/r\" init && \
                     restic -q --no-cache -r \"$2/r\" backup \"$1\"",
            ..COPIER
        },
        Self {
            name: "sqlite3",
            script: "sqlite3 \"$3\" \".backup '$2/copy'\"",
            is_of_database: true,
            ..COPIER
        },
        // It finds nothing, and ends with 1.
        Self {
            name: "grep",
            script: "grep -rq 'what no file contains' \"$1\" || test $? = 1",
            ..READER
        },
        Self {
            name: "sha256sum",
            script: "find \"$1\" -type f -exec sha256sum {} + > \"$2/sums\"",
            ..READER
        },
        Self {
            name: "python3",
            script: "python3 -c '\
import mmap, sys, zlib
with open(sys.argv[1], \"rb\") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
    print(sum(zlib.crc32(m[i:i + 1048576]) for i in range(0, len(m), 1048576)))
' \"$1/large\" > \"$2/sum\"",
            is_of_large_file: true,
            ..READER
        },
    ];

    /// Those whose programs are installed.
    pub(super) fn present() -> Vec<Self> {
        Self::ALL.into_iter().filter(|work| is_installed(work.name)).collect()
    }
}

/// A way to run a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As it is.
    Plain,
    /// With `weir run`.
    Weir,
    /// With nocache(1), which advises the kernel to drop what was read.
    Nocache,
    /// dd's own flags for the same.
    Fadvise,
    /// In a control group with a small part of the memory (`systemd-run -p MemoryMax`).
    Limited,
}

impl Way {
    /// For reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Weir => "weir run",
            Self::Nocache => "nocache",
            Self::Fadvise => "dd iflag=nocache",
            Self::Limited => "MemoryMax",
        }
    }

    /// The ways to run `work` that are possible here.
    pub(super) fn of(work: &Work) -> Vec<Self> {
        let mut ways = vec![Self::Plain, Self::Weir];
        ways.extend(is_installed("nocache").then_some(Self::Nocache));
        ways.extend((work.name == "dd").then_some(Self::Fadvise));
        ways.push(Self::Limited);
        ways
    }
}

/// The places of a command.
pub(super) struct Places {
    /// Contains the others.
    pub(super) all: PathBuf,
    pub(super) data: PathBuf,
    pub(super) out: PathBuf,
    pub(super) database: PathBuf,
}

/// The arguments that run `work` in this way; `budget` is the memory for `weir run`.
pub(super) fn arguments(
    work: &Work,
    way: Way,
    places: &Places,
    budget: u64,
) -> Result<Vec<OsString>> {
    let mut args: Vec<OsString> = Vec::new();
    match way {
        Way::Weir => {
            args.extend([process::program()?.into(), "run".into(), "--budget".into()]);
            args.extend([budget.to_string().into(), "--path".into(), (&*places.all).into()]);
            args.push("--".into());
        }
        Way::Nocache => args.push("nocache".into()),
        Way::Fadvise => {
            args.extend(["env", "FLAGS=iflag=nocache oflag=nocache"].map(OsString::from))
        }
        Way::Plain | Way::Limited => {}
    }
    args.extend(["/bin/sh", "-c", work.script, "sh"].map(OsString::from));
    args.extend([&places.data, &places.out, &places.database].map(|path| path.into()));
    Ok(args)
}
