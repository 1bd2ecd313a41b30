#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;

fn nets(list: &[&str]) -> BTreeSet<Ipv4Net> {
    list.iter().map(|net| net.parse().unwrap()).collect()
}

fn clients(list: &[&str]) -> BTreeSet<IpAddr> {
    list.iter().map(|address| address.parse().unwrap()).collect()
}

fn peer(slot: usize, role: Role, api: Option<&str>) -> PeerRules {
    let v6 = |host: u16| std::net::Ipv6Addr::new(0xfd00, 0, 0, slot as u16, 0, 0, 0, host);
    let (donor, origin) = (([240, 0, 0, 1].into(), v6(1)), ([240, 0, 0, 2].into(), v6(2)));
    let (local, remote) = if role == Role::Donor { (donor, origin) } else { (origin, donor) };
    let allowed = Allowed { local, remote, routes: vec![crate::PodNetwork::unchanged("10.2.0.0/16".parse().unwrap())] };
    PeerRules { slot, role, allowed, remote_api: api.map(|api| api.parse().unwrap()), reach: Reach::default() }
}

fn rules(peering: &str, peer: PeerRules) -> Rules {
    Rules { device: "comity0".to_owned(), peers: [(peering.to_owned(), peer)].into(), overlay: None }
}

/// `COMITY_BLESS=1` rewrites the expected file; review it before you commit.
fn compare(name: &str, script: &str) {
    let path = format!("{}/src/tun/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("COMITY_BLESS").is_some() {
        std::fs::write(&path, script).unwrap();
    }
    assert_eq!(script, std::fs::read_to_string(&path).unwrap(), "{path}");
}

#[test]
fn the_table_of_an_origin() {
    let mut peer = peer(1, Role::Origin, Some("203.0.113.10:6443"));
    peer.reach = Reach {
        remote: nets(&["10.2.0.7/32", "10.2.0.9/32"]),
        local: nets(&["10.1.0.0/16"]),
        api_clients: clients(&["10.1.0.7"]),
    };
    compare("origin.nft", &rules("peering-1", peer).script());
}

#[test]
fn the_table_of_a_donor() {
    let mut peer = peer(3, Role::Donor, None);
    peer.reach = Reach { remote: nets(&["10.1.0.0/16"]), local: nets(&["10.2.0.7/32"]), ..Reach::default() };
    compare("donor.nft", &rules("peering-1", peer).script());
}

#[test]
fn the_table_of_a_gateway_with_other_nodes() {
    let mut peer = peer(1, Role::Origin, Some("203.0.113.10:6443"));
    peer.reach =
        Reach { remote: nets(&["10.2.0.7/32"]), local: nets(&["10.1.0.0/16"]), api_clients: clients(&["10.1.0.7"]) };
    let overlay = OverlayRules {
        device: "comity0v".to_owned(),
        port: 51872,
        nodes: [[198, 51, 100, 11].into(), [198, 51, 100, 12].into()].into(),
    };
    compare("gateway.nft", &Rules { overlay: Some(overlay), ..rules("peering-1", peer) }.script());
}

#[test]
fn the_table_without_peerings_shuts_the_device() {
    compare("empty.nft", &Rules { device: "comity0".to_owned(), peers: BTreeMap::new(), overlay: None }.script());
}

#[test]
fn an_api_at_an_ipv6_address_is_translated_to_one() {
    let mut peer = peer(1, Role::Origin, Some("[2001:db8::5]:443"));
    peer.reach.api_clients = clients(&["10.1.0.7", "2001:db8:1::7"]);
    let script = rules("p", peer).script();
    assert!(script.contains("ip6 daddr 2001:db8::5 tcp dport 443 dnat ip6 to [fd00:0:0:1::2]:7482"), "{script}");
    assert!(script.contains("set clients1 {\n\t\ttype ipv6_addr;\n\t\telements = { 2001:db8:1::7 }"), "{script}");
}

#[test]
fn pods_other_than_liqos_go_to_an_api_server_as_before() {
    let mut peer = peer(2, Role::Origin, Some("203.0.113.10:6443"));
    let script = rules("p", peer.clone()).script();
    assert!(script.contains("set clients2 {\n\t\ttype ipv4_addr;\n\t}"), "nobody at first: {script}");
    let redirecting: Vec<&str> = script.lines().filter(|line| line.contains("dnat ip to")).collect();
    assert_eq!(redirecting.len(), 2, "{script}");
    assert!(
        redirecting
            .iter()
            .all(|rule| rule.contains("ip saddr @clients2") || rule.contains("meta mark & 0xffff == 0x10c7"))
    );
    let admitting: Vec<&str> = script.lines().filter(|line| line.contains("ct status dnat accept")).collect();
    assert!(admitting.len() == 1 && admitting[0].contains("ip saddr @clients2"), "{script}");
    let liqo = Reach { api_clients: clients(&["10.1.0.7"]), ..Reach::default() };
    assert_eq!(peer.change(&liqo).unwrap(), "add element inet comity clients2 { 10.1.0.7 }\n");
    peer.reach = liqo;
    assert_eq!(peer.change(&Reach::default()).unwrap(), "delete element inet comity clients2 { 10.1.0.7 }\n");
}

#[test]
fn a_change_names_only_what_changes() {
    let mut peer = peer(2, Role::Origin, None);
    let one = Reach { remote: nets(&["10.2.0.7/32"]), local: nets(&["10.1.0.0/16"]), ..Reach::default() };
    let change = peer.change(&one).unwrap();
    assert_eq!(
        change,
        "add element inet comity remote2 { 10.2.0.7 }\nadd element inet comity local2 { 10.1.0.0/16 }\n"
    );
    peer.reach = one.clone();
    assert_eq!(peer.change(&one), None);
    let other = Reach { remote: nets(&["10.2.0.8/32", "10.2.0.9/32"]), ..one };
    assert_eq!(
        peer.change(&other).unwrap(),
        "delete element inet comity remote2 { 10.2.0.7 }\nadd element inet comity remote2 { 10.2.0.8, 10.2.0.9 }\n"
    );
}

#[test]
fn a_network_within_a_wider_one_is_left_out() {
    let overlapping = nets(&["10.1.0.0/16", "10.1.2.3/32", "10.1.2.9/24", "10.2.0.0/16", "10.0.0.0/15"]);
    assert_eq!(disjoint(&overlapping), nets(&["10.0.0.0/15", "10.2.0.0/16"]));
}

#[test]
fn a_peering_cannot_write_rules_by_its_name() {
    let script = rules("p\" accept\n\t\taccept #", peer(1, Role::Origin, None)).script();
    assert!(script.contains("comment \"peering pacceptaccept\""), "{script}");
}

#[test]
fn slots_are_used_again() {
    let mut rules = rules("a", peer(1, Role::Donor, None));
    rules.peers.insert("b".to_owned(), peer(3, Role::Donor, None));
    assert_eq!(rules.free_slot(), 2);
}
