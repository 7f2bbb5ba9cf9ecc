//! A tree: walks directories in order, and copies regular files concurrently.
//!
//! 1. Two sources never write to one name, or to names that the destination takes for one: the
//!    second one fails.
//! 2. A directory is not copied into itself, regardless of the paths used.
//! 3. Directories are made and listed ahead, several at a time: the beginning of each is in memory
//!    ([`PAGES_AHEAD`]), the rest is read when its turn comes. A directory exists before its entries
//!    are copied.

use super::attributes::{self, Like};
use super::copier::{Copier, add};
use super::directory::{Ahead, Existing, Level, Made, Opened, lookup, open};
use super::look::look_again;
use super::mend::mend;
use super::names::{Met, Names};
use super::options::Overwrite;
use super::temporary::replace_entry;
use super::{entry, file, node, source};
use crate::beyond::may_be_mount_point;
use crate::chain::Chain;
use crate::failure::{Asked, Failure, Result};
use crate::mounts::{Mounts, Place};
use crate::text::kind_name;
use futures_util::{StreamExt, stream};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use tokio::task::{JoinError, JoinSet};
use weir_pagecache::CachedFs;
use weir_vfs::{Attr, Caller, DirEntry, Error, FileId, FileKind};

/// The copy of a file with several names, once it exists, and its place.
type Copied = Arc<OnceLock<(FileId, Place)>>;

/// The walk's state.
struct Walk<'a> {
    copier: &'a Arc<Copier>,
    /// Finds what links and mount points lead to.
    mounts: Option<&'a mut Mounts>,
    files: JoinSet<()>,
    /// Directories to read, and their destinations.
    ahead: Vec<Ahead>,
    /// Directories that are being made and listed.
    opening: JoinSet<Result<Opened>>,
    /// Directories whose attributes are set after their files exist.
    made: Vec<Made>,
    /// Files that have more than one name, by the addresses of the stores that they are copied to: a link cannot
    /// leave its store.
    linked: HashMap<(usize, source::Identity), Copied>,
    /// Further names, linked once the files exist, with the attributes of their sources.
    links: Vec<(Copied, Attr, Place)>,
    /// Destination directories, which must not be copied themselves.
    into: Vec<(CachedFs, Attr)>,
    /// Names already used as destinations.
    names: Names,
    /// Directories of the destination that are written to, and their sources.
    taken: HashMap<FileId, String>,
}

/// The directory that an entry is in.
struct Within<'a> {
    from: (&'a Place, FileId),
    /// Its copy was listed to the end before the first file was copied into it.
    is_known: bool,
    /// This run has made its copy.
    is_new: bool,
}

/// An entry of a directory, what was found there, and its destination.
type Target = (Place, weir_vfs::Result<Attr>, Place);

/// Directories that are made and listed at a time.
const OPENED_AT_ONCE: usize = 8;
/// Calls in flight at a time for names that are not, and for attributes of directories.
const CALLS_AT_ONCE: usize = 32;
/// Files that are up to date whose attributes are compared at a time.
const MENDED_AT_ONCE: usize = 64;

/// Copies each first place to its second, until all is done or interrupted.
pub(crate) async fn copy(
    copier: &Arc<Copier>,
    pairs: Vec<(Place, Place)>,
    mounts: Option<&mut Mounts>,
) {
    let mut walk = Walk {
        copier,
        mounts,
        files: JoinSet::new(),
        ahead: Vec::new(),
        opening: JoinSet::new(),
        made: Vec::new(),
        linked: HashMap::new(),
        links: Vec::new(),
        into: Vec::new(),
        names: Names::new(&pairs),
        taken: HashMap::new(),
    };
    tokio::select! {
        () = walk.all(pairs) => walk.finish().await,
        // The tasks see it, too; none may still write when temporary files are removed.
        () = copier.interrupted() => {
            walk.opening.shutdown().await;
            while walk.files.join_next().await.is_some() {}
        }
    }
}

impl Walk<'_> {
    async fn all(&mut self, pairs: Vec<(Place, Place)>) {
        for (from, to) in pairs {
            self.names.begin_source();
            if let Err(failure) = self.pair(from, to).await {
                self.copier.fail(failure);
            }
            loop {
                while self.opening.len() < OPENED_AT_ONCE
                    && let Some(next) = self.ahead.pop()
                {
                    let (copier, into) = (Arc::clone(self.copier), self.into.clone());
                    self.opening.spawn(async move { open(&copier, &into, next).await });
                }
                let Some(opened) = self.opening.join_next().await else { break };
                let copied = match opened {
                    Ok(Ok(opened)) => self.directory(opened).await,
                    Ok(Err(failure)) => Err(failure),
                    Err(error) => Err(panicked(&error)),
                };
                if let Err(failure) = copied {
                    self.copier.fail(failure);
                }
            }
        }
        self.join_all().await;
    }

    async fn pair(&mut self, from: Place, mut to: Place) -> Result<()> {
        let attr = from.existing("copy")?.clone();
        // An earlier source may have created it.
        if self.names.has_several_sources()
            && let Some(name) = &to.name
        {
            to.attr = lookup(&to, name).await?;
        }
        if let Some(into) = to.attr.as_ref().filter(|a| a.kind == FileKind::Directory) {
            self.into.push((to.fs.clone(), into.clone()));
        }
        let level = Level { depth: 0, top_fsid: attr.fsid, above: Chain::default() };
        self.entry(from, attr, to, level, None).await;
        Ok(())
    }

    /// Makes sure that a task that panicked does not look like a file that was copied.
    fn joined(&self, joined: Result<(), JoinError>) {
        if let Err(error) = joined {
            self.copier.fail(panicked(&error));
        }
    }

    /// Copies one entry, or queues it.
    async fn entry(
        &mut self,
        from: Place,
        attr: Attr,
        mut to: Place,
        level: Level,
        within: Option<&Within<'_>>,
    ) {
        if !entry::takes(self.copier, &from, &attr) {
            return;
        }
        let may_merge = match self.meet(&from, &attr, &mut to, within).await {
            Ok(may_merge) => may_merge,
            Err(failure) => return self.copier.fail(failure),
        };
        match entry::prepare(self.copier, &from, &attr, &mut to).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(failure) => return self.copier.fail(failure),
        }
        if attr.kind != FileKind::Directory {
            let is_new = within.is_some_and(|within| within.is_new);
            match self.is_kept(&attr, &mut to, is_new).await {
                Ok(true) => {
                    add(&self.copier.tally.kept, 1);
                    return;
                }
                Ok(false) => {}
                Err(failure) => return self.copier.fail(failure),
            }
        }
        if let Err(failure) = self.refuse_target(&from, &attr, &to).await {
            return self.copier.fail(failure);
        }
        match attr.kind {
            FileKind::Regular => self.regular(from, attr, to).await,
            _ if !self.copier.options.recursive => {
                let failed = format!("it is a {}", kind_name(attr.kind));
                let failure = Failure::new(format!("copy {}", from.shown), failed);
                let advice = "use -r to copy directories and special files";
                self.copier.fail(failure.advice(advice));
            }
            FileKind::Directory => self.ahead.push(Ahead { from, attr, to, may_merge, level }),
            _ if self.copier.options.dry_run => self.copier.progress.made(&from.shown, &to.shown),
            _ => {
                let copier = Arc::clone(self.copier);
                self.spawn(async move {
                    let make = async {
                        let Some(to) = look_again(&copier, Some(&attr), &to).await? else {
                            return Ok(false);
                        };
                        let made = match attr.kind {
                            FileKind::Symlink => node::symlink(&copier, &from, &attr, &to).await,
                            _ => node::special(&copier, &from, &attr, &to).await,
                        };
                        made.map(|()| true)
                    };
                    let made = tokio::select! {
                        made = make => made,
                        () = copier.interrupted() => return,
                    };
                    match made {
                        Ok(true) => copier.progress.made(&from.shown, &to.shown),
                        Ok(false) => add(&copier.tally.kept, 1),
                        Err(failure) => copier.fail_or_keep(failure),
                    }
                })
                .await;
            }
        }
    }

    /// Fails if another source has the name of an entry, or one that the destination takes for it.
    /// Returns whether the entry is a directory that may be merged with another one.
    async fn meet(
        &mut self,
        from: &Place,
        attr: &Attr,
        to: &mut Place,
        within: Option<&Within<'_>>,
    ) -> Result<bool> {
        // The root of a store.
        let Some(name) = to.name.clone() else { return Ok(true) };
        let is_directory = attr.kind == FileKind::Directory;
        match self.names.meet(to.dir, &name) {
            Met::First => Ok(false),
            Met::Again if is_directory => Ok(true),
            Met::Again => {
                let asked = format!("copy {} to {}", from.shown, to.shown);
                let failure = Failure::new(asked, "another source was just copied to that name");
                Err(failure.advice("copy them to different directories"))
            }
            // Nothing is made that could be found.
            Met::Similar(_) if self.copier.options.dry_run => Ok(false),
            Met::Similar(source) => {
                // What is there now tells which name the destination takes it for.
                self.join_all().await;
                self.make_links().await;
                let now = lookup(to, &name).await?;
                let is_known = within.is_some_and(|within| within.is_known);
                let was = to.attr.as_ref().filter(|_| is_known).map(|attr| attr.id);
                let is_as_before = now.as_ref().is_none_or(|now| was == Some(now.id));
                if !is_as_before
                    && let Some(other) =
                        self.names.other(source, within.map(|within| within.from), to).await?
                {
                    return Err(taken_for_one(from, to, &other));
                }
                to.attr = now;
                Ok(false)
            }
        }
    }

    async fn join_all(&mut self) {
        while let Some(joined) = self.files.join_next().await {
            self.joined(joined);
        }
    }

    /// Fails if a symbolic link would replace the file that it leads to: the data would be lost.
    async fn refuse_target(&mut self, from: &Place, attr: &Attr, to: &Place) -> Result<()> {
        let is_file =
            |there: &&Attr| !matches!(there.kind, FileKind::Symlink | FileKind::Directory);
        let (FileKind::Symlink, Some(there), Some(mounts)) =
            (attr.kind, to.attr.as_ref().filter(is_file), &mut self.mounts)
        else {
            return Ok(());
        };
        match mounts.beyond(from).await {
            Ok((_, led)) if source::is_same(&led, there) => {
                let asked = format!("copy {} to {}", from.shown, to.shown);
                Err(Failure::new(asked, "they are the same file"))
            }
            // It leads elsewhere, or nowhere.
            _ => Ok(()),
        }
    }

    /// Whether a file that exists stays. In a new directory none does: what appears there is not replaced.
    async fn is_kept(&self, attr: &Attr, to: &mut Place, is_new: bool) -> Result<bool> {
        let options = &self.copier.options;
        // The question is about what is there now. A dry run has no directories to look into.
        if options.asks
            && !is_new
            && !options.dry_run
            && let Some(name) = to.name.clone()
        {
            to.attr = lookup(to, &name).await?;
        }
        let Some(there) = &to.attr else { return Ok(false) };
        let stays = match options.overwrite {
            Overwrite::Replace => false,
            Overwrite::Keep => true,
            Overwrite::Update => there.mtime >= attr.mtime,
        };
        Ok(stays || options.asks && !self.copier.progress.may_replace(&to.shown))
    }

    /// Runs a task that copies a file, beside as many as the options allow.
    async fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_beside(self.copier.options.jobs, task).await;
    }

    /// Runs a task when there are fewer than `most`.
    async fn spawn_beside(&mut self, most: usize, task: impl Future<Output = ()> + Send + 'static) {
        while self.files.len() >= most {
            if let Some(joined) = self.files.join_next().await {
                self.joined(joined);
            }
        }
        self.files.spawn(task);
    }

    async fn regular(&mut self, from: Place, attr: Attr, to: Place) {
        let mut copied = None;
        if self.copier.options.preserve && attr.nlink > 1 {
            let key = (Arc::as_ptr(to.fs.store()).addr(), source::Identity::of(&from, &attr));
            let first = self.linked.get(&key).cloned();
            if let Some(first) = first {
                self.links.push((first, attr, to));
                return;
            }
            copied = Some(Copied::default());
            self.linked.extend(copied.clone().map(|c| (key, c)));
        }
        self.copier.progress.found(attr.size);
        if file::is_done(self.copier, &attr, &to) {
            return self.up_to_date(from, attr, to, copied).await;
        }
        if self.copier.options.dry_run {
            self.copier.progress.made(&from.shown, &to.shown);
            return;
        }
        let copier = Arc::clone(self.copier);
        self.spawn(async move {
            let done = tokio::select! {
                done = file::copy_found_again(&copier, &from, &attr, &to) => done,
                () = copier.interrupted() => return,
            };
            match done {
                Ok(Some(id)) => {
                    copier.progress.made(&from.shown, &to.shown);
                    if let Some(copied) = copied {
                        // Set once, by the task that copies its first name.
                        let _ = copied.set((id, to));
                    }
                }
                Ok(None) => add(&copier.tally.kept, 1),
                Err(failure) => copier.fail_or_keep(failure),
            }
        })
        .await;
    }

    /// Counts a file that needs no copy. In a mirror, it may need attributes.
    async fn up_to_date(&mut self, from: Place, attr: Attr, to: Place, copied: Option<Copied>) {
        self.copier.progress.copied(attr.size);
        add(&self.copier.tally.up_to_date, 1);
        if let (Some(copied), Some(there)) = (copied, &to.attr) {
            // Set once, as only a file's first name gets here.
            let _ = copied.set((there.id, to.clone()));
        }
        if self.copier.options.mirror.is_none() {
            return;
        }
        let copier = Arc::clone(self.copier);
        // A few calls, and no data.
        let mended = async move {
            let Some(there) = &to.attr else { return };
            let mend = || mend(&copier, Like::new(&from, &attr), &to, there);
            let mend = from.both_found_again(attr.id, (&to, there.id), mend);
            let mended = tokio::select! {
                mended = mend => mended,
                () = copier.interrupted() => return,
            };
            match mended.asked(|| format!("set the attributes of {}", to.shown)) {
                Ok(true) if copier.options.dry_run => copier.progress.made(&from.shown, &to.shown),
                Ok(_) => {}
                Err(failure) => copier.fail(failure),
            }
        };
        self.spawn_beside(self.copier.options.jobs.max(MENDED_AT_ONCE), mended).await;
    }

    /// Copies the content of a directory whose copy exists.
    async fn directory(&mut self, opened: Opened) -> Result<()> {
        let Opened { made, is_new, may_merge, entries, mut rest, mut listed, there } = opened;
        let Made { from, to, attr, now, level } = &made;
        let (from, to, attr, level) = (from.clone(), to.clone(), attr.clone(), level.clone());
        let id = now.id;
        let is_known = there.is_complete && !self.names.has_several_sources();
        let is_taken = (!self.copier.options.dry_run)
            .then(|| self.taken.insert(id, from.shown.clone()))
            .flatten();
        if let Some(other) = is_taken.filter(|_| !may_merge) {
            return Err(taken_for_one(&from, &to, &other));
        }
        // If the topmost directory were inside the source, it would be found there and copied into
        // itself, forever.
        if is_new && level.depth == 0 && !self.copier.options.dry_run {
            self.into.push((to.fs.clone(), now.clone()));
        }
        // An earlier run may have ended before it set them.
        if (is_new || self.copier.options.preserve) && !self.copier.options.dry_run {
            self.made.push(made);
        }
        let above = match self.copier.options.dereference {
            true => level.above.with(attr.clone()),
            false => Chain::default(),
        };
        let level = Level { depth: level.depth + 1, above, ..level };
        let within = Within { from: (&from, attr.id), is_known, is_new };
        let mut page = Some(entries);
        while let Some(entries) = page {
            for target in targets((&from, attr.id), (&to, id), &there, entries).await {
                let found = match target {
                    Ok((source, found, target)) => {
                        let led = self.lead(source, found, &level).await;
                        led.map(|(source, found)| (source, found, target))
                    }
                    Err(failure) => Err(failure),
                };
                match found {
                    Ok((source, attr, to)) => {
                        self.entry(source, attr, to, level.clone(), Some(&within)).await
                    }
                    Err(failure) => self.copier.fail(failure),
                }
            }
            if listed.is_err() {
                break;
            }
            page = match rest.next().await.asked(|| format!("list {}", from.shown)) {
                Ok(page) => page,
                Err(failure) => {
                    listed = Err(failure);
                    break;
                }
            };
        }
        self.names.end_directory();
        listed
    }

    /// The file to copy for an entry: where links are followed, or a file system is mounted, another one.
    async fn lead(
        &mut self,
        source: Place,
        found: weir_vfs::Result<Attr>,
        level: &Level,
    ) -> Result<(Place, Attr)> {
        let follows = self.copier.options.dereference;
        let is_link = match &found {
            Ok(attr) if follows && attr.kind == FileKind::Symlink => true,
            Err(error) if may_be_mount_point(*error) && self.mounts.is_some() => false,
            _ => {
                let attr = found.asked(|| format!("find {}", source.shown))?;
                return Ok((source, attr));
            }
        };
        let Some(mounts) = &mut self.mounts else {
            let asked = format!("follow the symbolic link {}", source.shown);
            return Err(Failure::new(asked, "this copy cannot leave its tree"));
        };
        let (led, attr) = mounts.beyond(&source).await?;
        let is_above = |above: &Attr| source::is_same(above, &attr);
        if is_link && attr.kind == FileKind::Directory && level.above.iter().any(is_above) {
            let asked = format!("copy the symbolic link {}", source.shown);
            let failure = Failure::new(asked, "it leads to a directory that it is in");
            return Err(failure.advice("leave out -L to copy the link itself"));
        }
        Ok((led, attr))
    }

    /// After the files exist: creates further names of them.
    async fn make_links(&mut self) {
        for (copied, attr, to) in std::mem::take(&mut self.links) {
            if self.copier.options.dry_run {
                continue;
            }
            if let Err(failure) = self.link(&copied, &attr, &to).await {
                self.copier.fail(failure);
            }
        }
    }

    /// After the files exist: creates further names and sets the attributes of directories, the
    /// innermost first.
    async fn finish(&mut self) {
        self.make_links().await;
        let mut made = std::mem::take(&mut self.made);
        if self.copier.options.moves {
            let read = made.iter().map(|made| (&made.from, &made.attr));
            for failure in source::changed_directories(read).await {
                self.copier.fail(failure);
            }
        }
        // Of several sources that were copied into one directory, the first one counts.
        let mut copies = HashSet::new();
        made.retain(|made| copies.insert(made.now.id));
        made.sort_by_key(|made| std::cmp::Reverse(made.level.depth));
        for level in made.chunk_by(|a, b| a.level.depth == b.level.depth) {
            let set = stream::iter(level).map(|made| self.set(made));
            set.buffer_unordered(CALLS_AT_ONCE).collect::<()>().await;
        }
    }

    /// Sets the attributes of a directory.
    async fn set(&self, made: &Made) {
        let Made { from, attr, to, now, .. } = made;
        let set = || attributes::set_from(self.copier, Like::new(from, attr), to, now);
        let set = from.both_found_again(attr.id, (to, now.id), set).await;
        match set.asked(|| format!("set the attributes of {}", to.shown)) {
            Ok(()) => self.copier.note_changed(&to.fs, now.id),
            Err(failure) => self.copier.fail(failure),
        }
    }

    async fn link(&self, copied: &Copied, attr: &Attr, to: &Place) -> Result<()> {
        let write = || format!("make the hard link {}", to.shown);
        let name = to.name.as_deref().ok_or(Error::Exists).asked(write)?;
        let Some((id, copy)) = copied.get() else {
            return Err(Failure::new(write(), "the file itself was not copied"));
        };
        let Some(to) = look_again(self.copier, Some(attr), to).await? else {
            add(&self.copier.tally.kept, 1);
            return Ok(());
        };
        let to = &*to;
        match &to.attr {
            Some(there) if there.id == *id => {
                add(&self.copier.tally.up_to_date, 1);
                return Ok(());
            }
            Some(there) if there.kind == FileKind::Directory => {
                return Err(Error::IsDirectory).asked(write);
            }
            _ => {}
        }
        let link = || to.fs.link(&Caller::Own, *id, to.dir.entry(name));
        let linked = to.with_directory(|| copy.found_again(*id, link)).await;
        match linked {
            // It appeared since the directory was listed.
            Err(Error::Exists) if self.copier.options.overwrite == Overwrite::Keep => {
                add(&self.copier.tally.kept, 1);
                return Ok(());
            }
            // It appeared since the look above.
            Err(Error::Exists) if self.copier.options.heeds_existing() && to.attr.is_none() => {
                return Err(Error::Exists).asked(write);
            }
            Err(Error::Exists) => {
                let link = |name: Vec<u8>| async move {
                    to.fs.link(&Caller::Own, *id, to.dir.entry(&name)).await
                };
                replace_entry(self.copier, to, link).await.map(drop).asked(write)?;
            }
            linked => linked.map(drop).asked(write)?,
        }
        self.copier.note_changed(&to.fs, to.dir);
        add(&self.copier.tally.hard_links, 1);
        Ok(())
    }
}

fn taken_for_one(from: &Place, to: &Place, other: &str) -> Failure {
    let failed = format!("the destination takes its name for that of {other}");
    let failure = Failure::new(format!("copy {} to {}", from.shown, to.shown), failed);
    failure.advice("rename one of them, or copy them to different directories")
}

fn panicked(error: &JoinError) -> Failure {
    Failure::new("copy a file", format!("a fault in weir: {error}"))
}

/// The entries of a directory with their destinations, without those that vanished.
async fn targets(
    (from, id): (&Place, FileId),
    (to, made): (&Place, FileId),
    there: &Existing,
    entries: Vec<DirEntry>,
) -> Vec<Result<Target>> {
    let (from, to) = (&from.inside(id), &to.inside(made));
    let pairs = stream::iter(entries).map(|entry| async move {
        let source = from.child(&entry.name, None);
        let mut target = to.child(&entry.name, None);
        let look_up = || source.fs.lookup(&Caller::Own, source.dir.entry(&entry.name));
        let attr = match entry.attr {
            Some(attr) => Some(Ok(attr)),
            None => match source.with_directory(look_up).await {
                Err(Error::NotFound) => None,
                found => Some(found),
            },
        };
        target.attr = match there.found.get(&entry.name) {
            Some(found) => Some(found.clone()),
            None if there.is_complete || attr.is_none() => None,
            None => lookup(&target, &entry.name).await?,
        };
        Ok(attr.map(|attr| (source, attr, target)))
    });
    let pairs: Vec<Result<Option<_>>> = pairs.buffered(CALLS_AT_ONCE).collect().await;
    pairs.into_iter().filter_map(Result::transpose).collect()
}
