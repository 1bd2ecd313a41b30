//! Restarts, replacement and the end.

use comity_agent_model::boot_time::BootTime;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_donor_is_reached_again_within_seconds() {
    let (donor_fabric, origin_fabric) = (fabric().await, fabric().await);
    let peering = Peering::new("p");
    let echo = echo_server().await;
    let donor = peering.donor(&donor_fabric, &origin_fabric);
    let exposure = expose(&donor, API_PORT, echo.into()).unwrap();
    let origin = peering.origin(&origin_fabric, &donor_fabric);
    let forward = forward_local(&origin, loopback(0), API_PORT, nobody(), member()).await.unwrap();
    assert_eq!(echo_once(forward.local_addr(), b"before").await.unwrap(), b"before");

    let address = donor_fabric.local_addr();
    drop(exposure);
    donor_fabric.shutdown().await;
    let donor_fabric = Fabric::bind(listening(address)).await.unwrap();
    // The restarted side knows no endpoint: the origin must notice by itself.
    let donor = donor_fabric.add_peer(peering.side(Role::Donor, &[])).unwrap();
    let _exposure = expose(&donor, API_PORT, echo.into()).unwrap();
    let start = Instant::now();
    assert_eq!(echo_once(forward.local_addr(), b"after").await.unwrap(), b"after");
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_origin_reconnects() {
    let (donor_fabric, origin_fabric) = (fabric().await, fabric().await);
    let peering = Peering::new("p");
    let donor = peering.donor(&donor_fabric, &origin_fabric);
    let _exposure = expose(&donor, API_PORT, echo_server().await.into()).unwrap();
    let origin = peering.origin(&origin_fabric, &donor_fabric);
    origin.wait_handshake(SOON).await.unwrap();
    drop(origin_fabric);
    // At another port, as behind a NAT: the donor follows.
    let origin_fabric = fabric().await;
    let origin = peering.origin(&origin_fabric, &donor_fabric);
    let forward = forward_local(&origin, loopback(0), API_PORT, nobody(), member()).await.unwrap();
    let start = Instant::now();
    assert_eq!(echo_once(forward.local_addr(), b"again").await.unwrap(), b"again");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(donor.status().endpoint, Some(origin_fabric.local_addr()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adding_again_changes_nothing_and_another_epoch_replaces() {
    let fabric = fabric().await;
    let peering = Peering::new("p");
    let config = peering.side(Role::Donor, &[]);
    let first = fabric.add_peer(config.clone()).unwrap();
    let again = fabric.add_peer(config.clone()).unwrap();
    assert!(Arc::ptr_eq(&first.peer, &again.peer));
    let moved = fabric.add_peer(peering.side(Role::Donor, &[loopback(9)])).unwrap();
    assert!(Arc::ptr_eq(&first.peer, &moved.peer));

    let same_key = PeerConfig { peering: "q".to_owned(), ..config.clone() };
    assert!(matches!(fabric.add_peer(same_key), Err(FabricError::KeyInUse { .. })));
    let many = PeerConfig { endpoints: vec![loopback(9); 17], ..config.clone() };
    assert!(matches!(fabric.add_peer(many), Err(FabricError::TooManyEndpoints { count: 17, .. })));

    let next = fabric.add_peer(PeerConfig { epoch: 2, ..config.clone() }).unwrap();
    assert_eq!((next.epoch(), fabric.peer("p").unwrap().epoch()), (2, 2));
    assert!(matches!(first.wait_handshake(SOON).await, Err(FabricError::Removed { .. })));
    assert!(matches!(first.listen(1), Err(FabricError::Removed { .. })));
    // The caller knows which epoch counts: a number does not.
    let back = fabric.add_peer(config).unwrap();
    assert_eq!((back.epoch(), fabric.peer("p").unwrap().epoch()), (1, 1));
    assert!(matches!(next.wait_handshake(SOON).await, Err(FabricError::Removed { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_peering_ends_its_connections_and_waiters() {
    let pair = pair().await;
    let mut listener = pair.donor.listen(API_PORT).unwrap();
    let mut stream = pair.origin.connect(API_PORT).await.unwrap();
    let mut accepted = listener.accept().await.unwrap();
    let reader = tokio::spawn(async move { stream.read(&mut [0; 1]).await });
    let acceptor = tokio::spawn(async move { listener.accept().await.is_err() });
    let other = pair.donor_fabric.add_peer(Peering::new("other").side(Role::Donor, &[])).unwrap();
    let waiter = tokio::spawn(async move { other.wait_handshake(SOON * 2).await });
    assert!(pair.donor_fabric.remove_peer("pair"));
    // At once on this side; on the other side by the reset.
    assert!(accepted.read(&mut [0; 1]).await.is_err());
    let bounded = tokio::time::timeout(SOON, reader).await.unwrap().unwrap();
    assert!(bounded.is_err());
    assert!(tokio::time::timeout(SOON, acceptor).await.unwrap().unwrap());
    // Dropping the fabric ends the rest of it.
    drop(pair.donor_fabric);
    let ended = tokio::time::timeout(SOON, waiter).await.unwrap().unwrap();
    assert!(matches!(ended, Err(FabricError::Removed { .. })), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_is_an_error_that_names_it() {
    let fabric = fabric().await;
    let error = Fabric::bind(listening(fabric.local_addr())).await.unwrap_err();
    assert!(error.to_string().contains(&fabric.local_addr().to_string()), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_gateway_takes_over_and_a_fenced_one_is_mute() {
    let peering = Peering::new("p");
    let origin_fabric = fabric().await;
    let fence = Fence::closed();
    fence.extend_until(BootTime::now() + Duration::from_secs(60));
    let first = Fabric::bind_fenced(listening(loopback(0)), fence.clone()).await.unwrap();
    let second = fabric().await;
    let both = [first.local_addr(), second.local_addr()];
    let origin = origin_fabric.add_peer(peering.side(Role::Origin, &both)).unwrap();
    let forward = forward_local(&origin, loopback(0), API_PORT, nobody(), member()).await.unwrap();
    let echo = echo_server().await;
    let donor = peering.donor(&first, &origin_fabric);
    let _exposure = expose(&donor, API_PORT, echo.into()).unwrap();
    assert_eq!(echo_once(forward.local_addr(), b"first").await.unwrap(), b"first");
    let received = donor.status().rx_bytes;

    fence.close();
    // The standby knows no endpoint of the origin: the origin must find it.
    let donor_again = second.add_peer(peering.side(Role::Donor, &[])).unwrap();
    let _exposure_again = expose(&donor_again, API_PORT, echo.into()).unwrap();
    let start = Instant::now();
    assert_eq!(echo_once(forward.local_addr(), b"second").await.unwrap(), b"second");
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert_eq!(origin.status().endpoint, Some(second.local_addr()));
    assert_eq!(donor.status().rx_bytes, received, "a fenced gateway reads nothing");
}
