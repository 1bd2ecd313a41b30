//! Strangers, other peerings and malicious peers can do nothing.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_get_no_answer_and_change_nothing() {
    let pair = pair().await;
    let before = pair.donor.status();
    let stranger = UdpSocket::bind(loopback(0)).await.unwrap();
    let to = pair.donor_fabric.local_addr();
    for length in [0, 1, 4, 32, 64, 92, 148, 1500, 4000] {
        for kind in 0..=5 {
            let mut datagram = vec![0x5a; length];
            datagram.iter_mut().zip([kind, 0, 0, 0]).for_each(|(byte, value)| *byte = value);
            stranger.send_to(&datagram, to).await.unwrap();
        }
    }
    // A stranger with the public key passes the first check, but no other.
    let key = WireguardKey::generate().unwrap();
    let known = pair.donor.peer.config().local_secret.public();
    let mut tunn = Tunn::new(key.to_secret(), known.to_dalek(), None, None, 1, None);
    let mut buffer = [0; 2048];
    let TunnResult::WriteToNetwork(initiation) = tunn.format_handshake_initiation(&mut buffer, true) else {
        panic!("no initiation")
    };
    stranger.send_to(initiation, to).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(stranger.try_recv(&mut [0; 2048]).is_err());
    assert_eq!(pair.donor.status(), before);
    assert!(pair.origin.connect(1).await.is_err_and(|error| matches!(error, FabricError::Refused { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_peerings_over_one_socket_stay_separate() {
    let (donor_fabric, first_fabric, second_fabric) = (fabric().await, fabric().await, fabric().await);
    let (first, second) = (Peering::new("first"), Peering::new("second"));
    let mut clients = Vec::new();
    let mut servers = Vec::new();
    for (peering, other) in [(&first, &first_fabric), (&second, &second_fabric)] {
        let donor = peering.donor(&donor_fabric, other);
        let mut listener = donor.listen(API_PORT).unwrap();
        let name = peering.id.clone();
        servers.push(tokio::spawn(async move {
            let mut stream = listener.accept().await.unwrap();
            stream.write_all(name.as_bytes()).await.unwrap();
        }));
        clients.push((peering.id.clone(), peering.origin(other, &donor_fabric)));
    }
    for (name, origin) in &clients {
        let mut greeting = String::new();
        origin.connect(API_PORT).await.unwrap().read_to_string(&mut greeting).await.unwrap();
        assert_eq!(&greeting, name);
    }
    assert!(donor_fabric.remove_peer("first"));
    assert!(!donor_fabric.remove_peer("first"));
    assert!(donor_fabric.peer("first").is_none());
    // The other peering is not affected.
    let refused = clients[1].1.connect(API_PORT).await;
    assert!(matches!(refused, Err(FabricError::Refused { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_with_another_inner_source_are_dropped() {
    let fabric = fabric().await;
    let peering = Peering::new("p");
    let donor = fabric.add_peer(peering.side(Role::Donor, &[])).unwrap();
    let _listener = donor.listen(API_PORT).unwrap();
    // A malicious origin: its keys are valid, its packets are not.
    let socket = UdpSocket::bind(loopback(0)).await.unwrap();
    socket.connect(fabric.local_addr()).await.unwrap();
    let preshared = Some(*peering.preshared.to_bytes());
    let mut tunn = Tunn::new(peering.origin.to_secret(), peering.donor.public().to_dalek(), preshared, None, 1, None);
    let mut sealed = [0; 2048];
    let TunnResult::WriteToNetwork(initiation) = tunn.format_handshake_initiation(&mut sealed, true) else {
        panic!("no initiation")
    };
    socket.send(initiation).await.unwrap();
    let mut response = [0; 2048];
    let length = socket.recv(&mut response).await.unwrap();
    let TunnResult::WriteToNetwork(keepalive) = tunn.decapsulate(None, &response[..length], &mut sealed) else {
        panic!("no session")
    };
    socket.send(keepalive).await.unwrap();
    donor.wait_handshake(SOON).await.unwrap();

    let FabricAddresses { donor: to, origin: from } = fabric_addresses("p", 1);
    let spoofed = [Ipv6Addr::LOCALHOST, to, fabric_addresses("other", 1).origin];
    for source in spoofed {
        let TunnResult::WriteToNetwork(datagram) = tunn.encapsulate(&syn(source, to, API_PORT), &mut sealed) else {
            panic!("not sealed")
        };
        socket.send(datagram).await.unwrap();
    }
    let start = Instant::now();
    while donor.status().rejected_packets < spoofed.len() as u64 {
        assert!(start.elapsed() < SOON);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(donor.status().connections, 0);
    // With its true source the same packet opens a connection.
    let TunnResult::WriteToNetwork(datagram) = tunn.encapsulate(&syn(from, to, API_PORT), &mut sealed) else {
        panic!("not sealed")
    };
    socket.send(datagram).await.unwrap();
    let start = Instant::now();
    while donor.status().connections == 0 {
        assert!(start.elapsed() < SOON);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
