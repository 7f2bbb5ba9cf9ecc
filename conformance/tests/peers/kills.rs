//! Kills of the server (SIGKILL) while Linux's clients of versions 3, 4.1 and 4.2 change names and data.
//! No call may fail or be executed twice, and no data may be lost. `WEIR_KILLS` is the number of kills
//! (10).

use conformance::{Guest, scratch, weir};

#[test]
fn linux_clients_survive_repeated_kills_of_the_server() {
    let Some(guest) = Guest::find() else { return };
    let kills: u32 = std::env::var("WEIR_KILLS").map_or(10, |kills| kills.parse().unwrap());
    // A kill takes about eight seconds.
    let limit = 600 + 60 * kills;
    let dir = scratch();
    let export = dir.path().join("export");
    std::fs::create_dir(&export).unwrap();
    let script = conformance::workspace().join("conformance/guest/kill-loop.sh");
    let server = format!(
        "exec bash {} {kills} {export} {} --bind 192.0.2.1:2049 --state-dir {export}.state",
        script.display(),
        weir().display(),
        export = export.display(),
    );
    let with = ["--timeout", &limit.to_string()];
    let args = [export.to_str().unwrap(), &(limit - 60).to_string()];
    let text = guest.run(&server, &with, "kills.sh", &args);
    let log = std::fs::read_to_string(export.with_extension("log")).unwrap_or_default();
    assert!(
        text.contains("kills: ok") && text.contains(&format!("KILLS {kills}\n")),
        "{text}{log}"
    );
    // Grace must end when all clients have reclaimed, not after a lease of 90 s.
    for line in text.lines().filter_map(|line| line.strip_prefix("LONGEST ")) {
        let seconds: f64 = line.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(seconds < 60.0, "a client waited for the end of grace: {line}");
        println!("{line}");
    }
}
