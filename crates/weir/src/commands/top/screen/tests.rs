//! The screen, drawn into memory.

use super::draw::draw;
use super::state::{Part, Rates, State};
use super::take_new;
use crate::commands::top::figures::Sample;
use crate::commands::top::figures::sort::Sort;
use crate::commands::top::reader::Readings;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use weir_control::{CacheStatus, Connection, Export, FileStatus, Operation, Status};

const MIB: u64 = 1 << 20;

/// What a server says that has read so many MiB for clients.
fn sample(pid: u32, uptime_ms: u64, mib: u64) -> Sample {
    let export = Export {
        name: "/images".into(),
        path: "/srv/images".into(),
        reads: mib,
        read_bytes: mib * MIB,
        hole_bytes: mib * MIB,
        writes: 0,
        written_bytes: 0,
    };
    let operation = |name: &str, count| Operation {
        protocol: "nfs4".into(),
        name: name.into(),
        count,
        failed: 0,
        nanos: count * 50_000,
        received_bytes: count * 100,
        sent_bytes: count * MIB,
        by_duration: vec![count, 0],
    };
    let connection = Connection {
        id: 1,
        address: "10.0.0.1:700".into(),
        calls: mib,
        received_bytes: 0,
        sent_bytes: mib * MIB,
    };
    let status = Status {
        pid,
        command: "serve".into(),
        what: "serving /srv/images".into(),
        uptime_ms,
        cache: CacheStatus {
            budget_bytes: 64 * MIB,
            used_bytes: 16 * MIB,
            ..CacheStatus::default()
        },
        exports: vec![export],
        connections: vec![connection],
        operations: vec![operation("read_plus", mib), operation("getattr", 2 * mib)],
        bounds_us: vec![100],
        ..Status::default()
    };
    let file = |at: u64| FileStatus {
        path: format!("/srv/images/file-{at}").into(),
        size_bytes: 9 * MIB,
        resident_bytes: (9 - at) * MIB,
        dirty_bytes: 0,
        read_bytes: 0,
    };
    Sample { status, files: (0..9).map(file).collect() }
}

fn readings(samples: impl IntoIterator<Item = Sample>) -> Readings {
    Readings { samples: samples.into_iter().collect(), failures: Vec::new() }
}

fn lost() -> Readings {
    Readings { samples: Vec::new(), failures: vec!["nothing listens at /run/weir/7.sock".into()] }
}

fn drawn(state: &State, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let lines = (0..height).map(|y| {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        line.trim_end().to_owned() + "\n"
    });
    lines.collect()
}

fn press(state: &mut State, code: KeyCode) -> bool {
    state.key(KeyEvent::new(code, KeyModifiers::NONE))
}

/// A state after one interval of two seconds.
fn shown() -> State {
    let mut state = State::new(Sort::Amount);
    state.take(readings([sample(7, 10_000, 100)]));
    state.take(readings([sample(7, 12_000, 104)]));
    state
}

#[test]
fn the_figures_of_the_interval_are_drawn() {
    let screen = drawn(&shown(), (110, 30));
    for wanted in [
        "serve 7, up 12s: serving /srv/images",
        "averages of 2.0 s",
        "2.00 MiB/s",
        "16.00 MiB of 64.00 MiB (25%)",
        "50.0% of what was read",
        "100 us",
        "10.0.0.1:700",
        "/srv/images/file-0",
        "q quit",
    ] {
        assert!(screen.contains(wanted), "{wanted} is missing:\n{screen}");
    }
    // The most frequent operation is first.
    assert!(screen.find("getattr").unwrap() < screen.find("read_plus").unwrap(), "{screen}");
    let mut state = shown();
    press(&mut state, KeyCode::Char('s'));
    press(&mut state, KeyCode::Char('s'));
    assert!(drawn(&state, (110, 30)).contains("order: name"));
}

#[test]
fn a_terminal_of_any_size_is_drawn() {
    let mut state = shown();
    for help in [false, true] {
        state.is_help = help;
        for width in [1, 2, 10, 79, 300] {
            for height in [1, 2, 3, 8, 9, 15, 24, 31, 32, 100] {
                drawn(&state, (width, height));
            }
        }
    }
    drawn(&State::default(), (80, 24));
}

#[test]
fn a_large_terminal_has_curves() {
    let state = shown();
    assert_eq!(state.history, [Rates { read: 2 * MIB, written: 0 }], "the first is no rate");
    let curve = |screen: String| screen.contains('█');
    assert!(curve(drawn(&state, (110, 40))) && !curve(drawn(&state, (110, 24))));
}

#[test]
fn a_lost_process_is_reported_and_found_again() {
    let mut state = State::new(Sort::Amount);
    state.take(lost());
    assert!(drawn(&state, (80, 24)).contains("nothing listens at /run/weir/7.sock; trying again"));
    state.take(readings([sample(7, 10_000, 100)]));
    assert!(drawn(&state, (80, 24)).contains("averages since the start"));
    state.take(lost());
    let screen = drawn(&state, (80, 24));
    assert!(screen.contains("trying again") && screen.contains("serve 7"), "{screen}");
    // Another process has taken its place.
    state.take(readings([sample(8, 1000, 5)]));
    let screen = drawn(&state, (80, 24));
    assert!(screen.contains("serve 8") && !screen.contains("trying again"), "{screen}");
    assert!(screen.contains("averages since the start"), "{screen}");
}

#[test]
fn a_pause_keeps_the_figures() {
    let mut state = shown();
    press(&mut state, KeyCode::Char('p'));
    state.take(readings([sample(7, 13_000, 200)]));
    let screen = drawn(&state, (110, 30));
    assert!(screen.contains("paused") && screen.contains("2.00 MiB/s"), "{screen}");
    press(&mut state, KeyCode::Char('p'));
    state.take(readings([sample(7, 14_000, 207)]));
    assert!(drawn(&state, (110, 30)).contains("7.00 MiB/s"), "the rate is that of the last second");
}

#[test]
fn arrows_choose_the_process_and_scroll() {
    let mut state = State::new(Sort::Amount);
    let both = |ms| readings([sample(7, ms, 100), sample(8, ms, 100)]);
    state.take(both(1000));
    assert!(drawn(&state, (80, 24)).contains("[1 of 2] serve 7"));
    press(&mut state, KeyCode::Right);
    state.take(both(2000));
    assert!(drawn(&state, (80, 24)).contains("[2 of 2] serve 8"));
    press(&mut state, KeyCode::Tab);
    press(&mut state, KeyCode::Left);
    assert!(drawn(&state, (80, 24)).contains("[2 of 2]"));

    for wanted in [Part::Operations, Part::Clients, Part::Files] {
        assert_eq!(state.part, wanted);
        press(&mut state, KeyCode::Char('t'));
    }
    press(&mut state, KeyCode::Char('t'));
    press(&mut state, KeyCode::Char('t'));
    press(&mut state, KeyCode::Down);
    let screen = drawn(&state, (110, 30));
    assert!(screen.contains("file-1") && !screen.contains("file-0"), "{screen}");
    press(&mut state, KeyCode::End);
    assert!(drawn(&state, (110, 30)).contains("file-8"), "the last row stays");
    press(&mut state, KeyCode::Home);
    press(&mut state, KeyCode::Up);
    assert!(drawn(&state, (110, 30)).contains("file-0"));
}

#[test]
fn the_view_ends_with_the_thread_that_reads() {
    let (send, receive) = std::sync::mpsc::channel();
    let mut state = State::default();
    assert!(!take_new(&receive, &mut state).unwrap());
    send.send(readings([sample(7, 1000, 1)])).unwrap();
    assert!(take_new(&receive, &mut state).unwrap() && state.shown().is_some());
    drop(send);
    assert!(take_new(&receive, &mut state).is_err());
}

#[test]
fn a_terminal_of_80_columns_shows_all_of_them() {
    let screen = drawn(&shown(), (80, 24));
    let line = |part: &str| {
        screen
            .lines()
            .find(|line| line.contains(part))
            .unwrap_or_else(|| panic!("{part}:\n{screen}"))
    };
    assert!(line("per s").ends_with("failed Operation"), "{screen}");
    assert!(line("nfs4 read_plus").contains("2.00 MiB"), "{screen}");
    assert!(line("Uncached").ends_with("lost"), "{screen}");
    assert!(line("/srv/images/file-0").contains("9.00 MiB"), "{screen}");
    assert!(line("q quit").ends_with("h help"), "{screen}");
}

#[test]
fn keys_end_the_program_and_the_help() {
    let mut state = shown();
    press(&mut state, KeyCode::Char('h'));
    assert!(drawn(&state, (100, 30)).contains("choose a process"));
    assert!(!press(&mut state, KeyCode::Char('q')) && !state.is_help, "it closes the help");
    assert!(press(&mut state, KeyCode::Char('q')) && press(&mut state, KeyCode::Esc));
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(state.key(interrupt) && !press(&mut state, KeyCode::Char('c')));
}
