//! `comity dev --state`.

use super::{Running, comity, dev, exported, signal, stderr, until_ready};

#[test]
fn a_kept_federation_continues_from_its_state() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let start_and = |act: &dyn Fn(&str)| {
        let mut process = Running::start(dev(dir.path()).arg("--state").arg(&state));
        let text = until_ready(&mut process);
        act(&text);
        signal(process.id(), "TERM");
        assert!(process.wait().success());
        text
    };
    // She has no certificate that the brokers accept, until a start gives her a new one.
    let first = start_and(&|text| {
        let revoke = comity()
            .env("COMITY_BROKER", exported(text, "COMITY_BROKER"))
            .env("COMITY_IDENTITY", state.join("users/ingrid"))
            .args(["user", "revoke", "alice", "--yes"])
            .output()
            .unwrap();
        assert!(revoke.status.success(), "{}", stderr(&revoke));
        let evict = comity()
            .env("COMITY_BROKER", exported(text, "COMITY_BROKER"))
            .env("COMITY_IDENTITY", state.join("users/ingrid"))
            .args(["cluster", "evict", "startup-pc", "--yes"])
            .output()
            .unwrap();
        assert!(evict.status.success(), "{}", stderr(&evict));
        let suspend = comity()
            .env("COMITY_BROKER", exported(text, "COMITY_BROKER"))
            .env("COMITY_IDENTITY", state.join("users/ingrid"))
            .args(["institution", "suspend", "polytechnic", "--leases", "finish", "--yes"])
            .output()
            .unwrap();
        assert!(suspend.status.success(), "{}", stderr(&suspend));
    });
    for broker in ["broker-1", "broker-2", "broker-3"] {
        comity_broker::config::Config::load(&state.join(broker)).unwrap().check_private().unwrap();
    }
    assert!(first.contains("request-submitted"), "{first}");
    let taken = exported(&first, "COMITY_BROKER").split(',').next().unwrap().to_owned();
    let other = std::net::TcpListener::bind(&taken).unwrap();
    let refused = dev(dir.path()).arg("--state").arg(&state).output().unwrap();
    drop(other);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    let said = format!("another process listens on {taken}, which a kept broker needs");
    assert!(stderr(&refused).contains(&said), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("another --state directory"), "{}", stderr(&refused));
    let second = start_and(&|_| {});
    assert!(second.contains("the certificates of alice were revoked in an earlier run: she has a new one"), "{second}");
    assert!(second.contains("startup-pc was evicted in an earlier run: it joins again"), "{second}");
    assert!(second.contains("institution polytechnic was suspended in an earlier run: it is resumed"), "{second}");
    assert!(second.contains("lease-1 of the previous run is still active"), "{second}");
    assert_eq!(exported(&first, "COMITY_BROKER"), exported(&second, "COMITY_BROKER"));
}
