//! The client's use of its session.

use super::*;
use crate::world::World;

/// One call waits for the end of the grace period while another one finds that the session is gone,
/// and replaces it. A slot with two calls is a violation, which ends the program.
#[test]
fn a_call_that_waits_keeps_its_slot_while_another_one_recovers_the_session() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::new(1, None, false);
        world.start();
        let [client, absent] = [0, 1].map(|number| Client::new(&world, number, Version::V42, 1));
        let root = client.mount().await;
        client.create(&root, "file").await.result.unwrap();
        // It does not reclaim its open, so the grace period lasts.
        absent.mount().await;
        let other = absent.create(&root, "other").await.result.unwrap();
        world.crash(false);
        world.start();
        let waiting = {
            let client = client.clone();
            tokio::spawn(async move { client.opened(&other, open::ShareAccess::BOTH).await.result })
        };
        // Reclaims last longer than the pauses of the call that waits.
        world.disk.trouble(|trouble| trouble.slow_ms = 600);
        for _ in 0..20 {
            sleep(Duration::from_millis(500)).await;
            world.crash(false);
            world.start();
            client.run4(1, vec![Op::Putrootfh(())]).await.status.unwrap();
        }
        assert!(!waiting.is_finished(), "the grace period lasts");
        waiting.abort();
    });
}
