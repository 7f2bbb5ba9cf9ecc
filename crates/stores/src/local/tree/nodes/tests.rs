//! The table of nodes, its log, and the log's validity.

use super::*;

const ROOT: FileId = FileId { ino: 2, generation: 9 };

fn seen(ino: u64, dir: u64, name: &str) -> Seen {
    Seen {
        id: FileId { ino, generation: ino * 10 },
        born: ino,
        place: Link { dir, name: name.as_bytes().into() },
        is_dir: false,
        has_other_names: false,
        numbered: false,
    }
}

fn place_of(nodes: &Nodes, ino: u64) -> Option<(u64, String)> {
    let place = nodes.place(FileId { ino, generation: ino * 10 })?;
    Some((place.dir, String::from_utf8(place.name.into_vec()).unwrap()))
}

#[test]
fn the_table_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
    nodes.remember((10..200).map(|i| seen(i, 2, &format!("file{i}"))));
    let from = seen(0, 2, "file10").place;
    nodes.moved(FileId { ino: 10, generation: 100 }, false, &from, seen(0, 11, "moved").place);
    nodes.forget(12, 2, b"file12", true);
    nodes.remember([seen(500, 2, "after")]);
    assert!(Nodes::open(dir.path(), ROOT, 1000).is_err(), "one process at a time");
    drop(nodes);
    for _ in 0..2 {
        let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
        assert_eq!(nodes.len(), 190);
        assert_eq!(place_of(&nodes, 10), Some((11, "moved".into())));
        assert_eq!(place_of(&nodes, 12), None);
        assert_eq!(place_of(&nodes, 199), Some((2, "file199".into())));
        assert_eq!(nodes.place(FileId { ino: 199, generation: 1 }), None);
        assert!(nodes.is_complete());
    }
    let other_tree = FileId { ino: 3, generation: 9 };
    let nodes = Nodes::open(dir.path(), other_tree, 1000).unwrap();
    assert_eq!((nodes.len(), nodes.is_complete()), (0, false));
}

#[test]
fn a_log_of_an_earlier_version_is_read_and_rewritten() {
    let mut log = b"WEIRNOD2".to_vec();
    for word in [ROOT.ino, ROOT.generation, 1] {
        log.extend_from_slice(&u64::to_le_bytes(word));
    }
    for (ino, name) in [(10, "first"), (11, "second")] {
        let mut record = vec![name.len() as u8, 0, 1];
        for word in [ino, ino * 10, ino, 2] {
            record.extend_from_slice(&u64::to_le_bytes(word));
        }
        record.extend_from_slice(name.as_bytes());
        let sum = record.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, &byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        log.extend_from_slice(&sum.to_le_bytes());
        log.extend_from_slice(&record);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(LOG_NAME);
    std::fs::write(&path, &log).unwrap();
    LastExit::Clean.write(dir.path()).unwrap();
    for _ in 0..2 {
        let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
        assert_eq!(place_of(&nodes, 10), Some((2, "first".into())));
        assert_eq!(place_of(&nodes, 11), Some((2, "second".into())));
        assert!(nodes.is_complete());
        drop(nodes);
        assert_eq!(std::fs::read(&path).unwrap()[..8], *b"WEIRNOD3");
    }
    // A record with a checksum of the other kind is invalid.
    log[..8].copy_from_slice(b"WEIRNOD3");
    std::fs::write(&path, &log).unwrap();
    assert_eq!(Nodes::open(dir.path(), ROOT, 1000).unwrap().len(), 0);
}

#[test]
fn a_file_without_a_generation_has_the_number_that_was_entered_first() {
    let nodes = Nodes::in_memory(1000);
    let numbered = |generation, name| {
        let id = FileId { ino: 10, generation };
        Seen { id, born: 0, numbered: true, ..seen(10, 2, name) }
    };
    let (first, late) = (numbered(5, "f"), numbered(4, "f"));
    assert_eq!(nodes.number(first.clone(), |_| true), first.id);
    // A look that began earlier, and one of a walk.
    assert_eq!(nodes.number(late.clone(), |_| true), first.id);
    nodes.remember([late.clone(), numbered(3, "moved")]);
    assert_eq!((nodes.place(late.id), nodes.by_ino(10)), (None, Some(first.id)));
    assert_eq!(nodes.place(first.id), Some(seen(0, 2, "moved").place));
    // A new file under the inode number.
    let new = numbered(7, "new");
    assert_eq!(nodes.number(new.clone(), |known| known >= 6), new.id);
    assert_eq!((nodes.place(first.id), nodes.place(new.id)), (None, Some(new.place)));
    // A listing was faster than its creation.
    assert_eq!(nodes.number(numbered(8, "new"), |known| known >= 6), new.id);
}

#[test]
fn a_torn_tail_costs_only_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(LOG_NAME);
    drop(Nodes::open(dir.path(), ROOT, 1000).unwrap());
    let base = std::fs::read(&path).unwrap();
    let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
    nodes.remember([seen(10, 2, "first"), seen(11, 2, "second")]);
    drop(nodes);
    let whole = std::fs::read(&path).unwrap();
    for len in base.len()..whole.len() {
        std::fs::write(&path, &whole[..len]).unwrap();
        let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
        let first_is_whole = len >= base.len() + RECORD_BYTES + 5;
        assert_eq!(nodes.len(), usize::from(first_is_whole), "{len} bytes");
    }
    let mut bad = whole.clone();
    let last = bad.len() - 1;
    bad[last] ^= 1;
    std::fs::write(&path, &bad).unwrap();
    assert_eq!(Nodes::open(dir.path(), ROOT, 1000).unwrap().len(), 1);
}

#[test]
fn a_linked_file_keeps_its_other_names_when_one_is_renamed() {
    let dir = tempfile::tempdir().unwrap();
    let link = |name| seen(0, 2, name).place;
    let id = seen(10, 2, "").id;
    let linked = |ino, name| Seen { has_other_names: true, ..seen(ino, 2, name) };
    let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
    nodes.remember([linked(10, "a"), linked(10, "b"), linked(11, "only")]);
    let names = |nodes: &Nodes, id| {
        let mut names = nodes.other_places(id);
        names.extend(nodes.place(id));
        names.sort_by(|a, b| a.name.cmp(&b.name));
        names
    };
    // The name that is not the place, the place, and the only name that the table has.
    nodes.moved(id, true, &link("a"), link("c"));
    assert_eq!(names(&nodes, id), [link("b"), link("c")]);
    nodes.moved(id, true, &link("c"), link("d"));
    assert_eq!(names(&nodes, id), [link("b"), link("d")]);
    let other = seen(11, 2, "").id;
    nodes.moved(other, true, &link("only"), link("now"));
    assert_eq!(names(&nodes, other), [link("now")]);
    // Another program has renamed it meanwhile.
    nodes.moved(other, false, &link("unseen"), link("last"));
    assert_eq!(names(&nodes, other), [link("last")]);
    drop(nodes);
    let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
    assert!(names(&nodes, id).contains(&link("b")), "the log has it, too");
    nodes.forget(10, 2, b"d", false);
    assert_eq!(nodes.place(id), Some(link("b")));
}

#[test]
fn a_linked_file_is_known_by_its_other_name() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
    let linked = |name| Seen { has_other_names: true, ..seen(10, 2, name) };
    nodes.remember([linked("a"), linked("b")]);
    drop(nodes);
    let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
    assert_eq!(place_of(&nodes, 10), Some((2, "b".into())));
    nodes.forget(10, 2, b"b", false);
    assert_eq!(place_of(&nodes, 10), Some((2, "a".into())));
}

#[test]
fn a_full_table_drops_files_and_never_directories() {
    let nodes = Nodes::in_memory(100);
    let dirs = (1000..1010).map(|i| Seen { is_dir: true, ..seen(i, 2, "dir") });
    nodes.remember(dirs);
    nodes.remember((2000..3000).map(|i| seen(i, 2, "file")));
    assert_eq!(nodes.len(), 100);
    assert!((1000..1010).all(|ino| place_of(&nodes, ino).is_some()));
    assert!(!nodes.is_complete());
}

#[test]
fn only_a_log_closed_or_of_this_boot_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Nodes::open(dir.path(), ROOT, 1000).unwrap();
    let nodes = open();
    nodes.remember([seen(10, 2, "file")]);
    drop(nodes);
    assert_eq!(LastExit::read(dir.path()), LastExit::Clean);
    assert!(open().is_complete());
    // Killed: the kernel has its writes.
    LastExit::of_this_boot().write(dir.path()).unwrap();
    assert!(open().is_complete());
    // The machine crashed.
    LastExit::Boot("another boot of the machine".into()).write(dir.path()).unwrap();
    let nodes = open();
    assert_eq!((nodes.len(), nodes.is_complete()), (1, false));
    drop(nodes);
    // A table that is incomplete stays so over later restarts.
    assert!(!open().is_complete());
    assert!(!open().is_complete());
}

#[test]
fn a_log_without_its_mark_is_not_complete() {
    for lost in [LOG_NAME, "nodes.state"] {
        let dir = tempfile::tempdir().unwrap();
        drop(Nodes::open(dir.path(), ROOT, 1000).unwrap());
        std::fs::remove_file(dir.path().join(lost)).unwrap();
        let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
        assert!(!nodes.is_complete(), "without {lost}");
    }
}

#[test]
fn entries_wait_in_memory_while_the_disk_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
    let log = nodes.shared.log.as_ref().unwrap();
    let real = log.lock().file.clone();
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    log.lock().file = Arc::new(full);
    nodes.remember([seen(10, 2, "one"), seen(11, 2, "two")]);
    let id = FileId { ino: 11, generation: 110 };
    nodes.moved(id, false, &seen(0, 2, "two").place, seen(0, 2, "three").place);
    assert_eq!(place_of(&nodes, 10), Some((2, "one".into())));
    assert!(log.lock().is_failing());
    assert_eq!(LastExit::read(dir.path()), LastExit::Missing, "the log is not to be believed now");
    log.lock().file = real;
    let limit = Instant::now() + Duration::from_secs(60);
    while log.lock().is_failing() {
        assert!(Instant::now() < limit, "the keeper tries again");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_ne!(LastExit::read(dir.path()), LastExit::Missing);
    drop(nodes);
    let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
    assert_eq!(place_of(&nodes, 11), Some((2, "three".into())));
    assert!(nodes.is_complete());
}

#[test]
fn a_log_is_compacted_while_others_append() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = Nodes::open(dir.path(), ROOT, 100_000).unwrap();
    let log = nodes.shared.log.as_ref().unwrap();
    nodes.remember((10..20_000).map(|i| seen(i, 2, "before")));
    std::thread::scope(|scope| {
        let nodes = &nodes;
        let changes = scope.spawn(move || {
            for i in 0..5_000 {
                nodes.forget(10 + i * 3, 2, b"before", true);
                nodes.remember([seen(30_000 + i, 2, "meanwhile")]);
                let id = FileId { ino: 11 + i * 3, generation: (11 + i * 3) * 10 };
                nodes.moved(id, false, &seen(0, 2, "before").place, seen(0, 2, "moved").place);
            }
        });
        while !changes.is_finished() {
            nodes.shared.compact(log).unwrap();
        }
    });
    let all = |nodes: &Nodes| -> Vec<_> { (10..40_000).map(|ino| place_of(nodes, ino)).collect() };
    let expected = all(&nodes);
    drop(nodes);
    let nodes = Nodes::open(dir.path(), ROOT, 100_000).unwrap();
    assert!(all(&nodes) == expected && nodes.is_complete());
}

/// Lets writes of a file find no space.
fn fill(dir: &Path, name: &str) {
    std::os::unix::fs::symlink("/dev/full", dir.join(name)).unwrap();
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_new_log_that_finds_no_space_is_removed_and_written_later() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
    let log = nodes.shared.log.as_ref().unwrap();
    let is_there = || dir.path().join("nodes.new").symlink_metadata().is_ok();
    fill(dir.path(), "nodes.new");
    assert_eq!(nodes.shared.compact(log).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert!(!is_there());
    // As after a sync that failed.
    fill(dir.path(), "nodes.new");
    log.lock().lost = true;
    nodes.remember([seen(10, 2, "one")]);
    wait_until("the keeper tries", || !is_there());
    wait_until("it has noted the failure", || log.lock().compact_after.is_some());
    let after = log.lock().compact_after.unwrap();
    assert!(after > Instant::now() + COMPACT_AGAIN / 2, "not at once");
    assert!(log.lock().lost);
    assert!(nodes.is_complete(), "the table lacks nothing");
    log.lock().compact_after = None;
    wait_until("the keeper tries again", || !log.lock().lost);
    assert_eq!(LastExit::read(dir.path()), LastExit::of_this_boot());
    drop(nodes);
    let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
    assert_eq!(place_of(&nodes, 10), Some((2, "one".into())));
    assert!(nodes.is_complete());
}

#[test]
fn a_log_that_cannot_be_rewritten_is_continued() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(LOG_NAME);
    let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
    nodes.remember([seen(10, 2, "one")]);
    drop(nodes);
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"torn").unwrap();
    fill(dir.path(), "nodes.new");
    let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
    assert_eq!(place_of(&nodes, 10), Some((2, "one".into())));
    assert!(nodes.is_complete());
    nodes.remember([seen(11, 2, "two")]);
    let log = nodes.shared.log.as_ref().unwrap();
    wait_until("it is rewritten", || !log.lock().lost);
    assert_eq!(LastExit::read(dir.path()), LastExit::of_this_boot());
    drop(nodes);

    // If it cannot be marked either, it is not trusted after the next start.
    fill(dir.path(), "nodes.new");
    fill(dir.path(), "nodes.state.new");
    let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
    assert_eq!(LastExit::read(dir.path()), LastExit::Missing);
    assert_eq!([10, 11].map(|ino| place_of(&nodes, ino).is_some()), [true; 2]);
    nodes.remember([seen(12, 2, "three")]);
    assert!(nodes.is_complete());
    drop(nodes);
    let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
    assert_eq!(place_of(&nodes, 12), Some((2, "three".into())));
    assert!(!nodes.is_complete());
}

#[test]
fn a_mark_leaves_a_log_alone_that_is_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
    let fresh = nodes.shared.write_snapshot(&dir.path().join(LOG_NAME), ROOT).unwrap();
    LastExit::of_this_boot().write(dir.path()).unwrap();
    put_in_place(fresh, &dir.path().join(LOG_NAME)).unwrap();
    assert_eq!(LastExit::read(dir.path()), LastExit::of_this_boot());
}
