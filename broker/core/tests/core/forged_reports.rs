//! What a donor says of itself, and what somebody says who has its certificate: the damage ends.

use comity_core::command::{
    AdvertiseOffer, InviteCluster, JoinCluster, LeaseOutcome, OfferKeys, PeeringOutcome, ReportLease, ReportPeering,
    ReviseOffer,
};
use comity_core::inventory::NodeMap;
use comity_core::limits::MAX_GENERATION_STEP;
use comity_core::refusal::Code;
use comity_core::{Command, Millis, Timestamp};
use comity_types::{ClusterId, LeaseId, MAX_FENCING_TOKEN_STEP, PeeringId, Side};

use super::federation::{Federation, cluster, offer};
use super::handshake::{keys, refused};

fn token(federation: &Federation) -> u64 {
    federation.state.clusters[&cluster("north")].last_fencing_token
}

/// A broker that was taken over skipped tokens, and the donor admitted leases with them.
#[test]
fn a_donor_that_admitted_later_tokens_gets_later_ones_again() {
    let (mut federation, _, lease, _) = Federation::placed();
    assert_eq!(token(&federation), 1);
    federation.report_lease("west", lease, refused("an origin admits none", 9));
    assert_eq!(token(&federation), 1, "an origin says nothing about a donor's tokens");
    for (admitted, last) in [(70, 70), (0, 1), (u64::MAX, 1 + MAX_FENCING_TOKEN_STEP)] {
        let (mut federation, _, lease, _) = Federation::placed();
        federation.report_lease("north", lease, refused("its fencing token is too low", admitted));
        assert_eq!(token(&federation), last, "{admitted}");
    }
}

/// Somebody with the donor's certificate reports the highest token, many times. The donor refuses the next lease, as its
/// agent does, and tells its own highest token. All later leases have tokens that it admits.
#[test]
fn forged_report_raises_fencing_tokens_beyond_the_donor() {
    let (mut federation, _, mut lease, _) = Federation::placed();
    let own = 0;
    for _ in 0..3 {
        federation.report_lease("north", lease, refused("forged", u64::MAX));
        // A second one about the same lease adds nothing.
        let once = token(&federation);
        federation.report_lease("north", lease, refused("forged", u64::MAX));
        assert_eq!(token(&federation), once);
        lease = federation.placed_at_north();
    }
    let issued = federation.state.leases[&lease].fencing_token;
    assert!(issued > own + MAX_FENCING_TOKEN_STEP, "the donor refuses {issued}");
    federation.report_lease("north", lease, refused("token-too-high", own));
    for _ in 0..3 {
        let next = federation.placed_at_north();
        let issued = federation.state.leases[&next].fencing_token;
        assert!((own + 1..own + 20).contains(&issued), "{issued}");
    }
}

/// Leases that were placed meanwhile are refused for the same reason. Their reports come after the donor admitted a
/// lease with a lower token, and change nothing.
#[test]
fn late_refusals_of_a_token_that_is_too_high_change_nothing() {
    let (mut federation, _, lease, _) = Federation::placed();
    federation.report_lease("north", lease, refused("forged", u64::MAX));
    let (first, second) = (federation.placed_at_north(), federation.placed_at_north());
    federation.report_lease("north", first, refused("token-too-high", 0));
    federation.placed_at_north();
    let issued = token(&federation);
    assert!((1..20).contains(&issued), "{issued}");
    federation.report_lease("north", second, refused("token-too-high", 0));
    assert_eq!(token(&federation), issued);
}

#[test]
fn forged_offer_uses_up_the_generations() {
    let mut federation = Federation::ready();
    let north = cluster("north");
    let last = |federation: &Federation| federation.state.clusters[&north].offer_generation();
    let advertise = |generation: u64| {
        Command::AdvertiseOffer(AdvertiseOffer { cluster: cluster("north"), offer: offer(generation, &[]) })
    };
    let before = last(&federation);
    for far in [u64::MAX, before + MAX_GENERATION_STEP + 1] {
        assert_eq!(federation.refused(advertise(far)).field, "offer.generation");
        let nodes = NodeMap::default();
        let revision =
            ReviseOffer { cluster: cluster("north"), revises: before, generation: far, nodes, gone: [].into() };
        assert_eq!(federation.refused(Command::ReviseOffer(revision)).field, "offer.generation");
    }
    assert_eq!(last(&federation), before);
    federation.ok(advertise(before + MAX_GENERATION_STEP));
    federation.ok(advertise(before + MAX_GENERATION_STEP + 1));
}

/// Whoever had the replaced agent's certificate may have invented GPUs.
#[test]
fn offer_of_a_stolen_certificate_survives_the_replacement() {
    let mut federation = Federation::ready();
    let before = federation.state.clusters[&cluster("north")].offer_generation();
    federation.rejoin("north");
    let north = &federation.state.clusters[&cluster("north")];
    assert!(north.offer.is_none());
    assert_eq!(north.offer_generation(), before + 1, "the agent sees that its offer is gone");
    // Indexes and leases name generations, so none comes twice.
    let stale = AdvertiseOffer { cluster: cluster("north"), offer: offer(before, &[]) };
    assert_eq!(federation.refused(Command::AdvertiseOffer(stale)).code, Code::StaleGeneration);
    federation.offer("north", offer(before + 2, &[]));
}

/// Ids are numbers in order: who asks for all of them learns how busy others are.
#[test]
fn member_probes_for_leases_and_peerings_of_others() {
    let (mut federation, _, lease, peering) = Federation::placed();
    let report = |lease: LeaseId| {
        let outcome = LeaseOutcome::Clean;
        Command::ReportLease(ReportLease { cluster: cluster("south"), lease, fencing_token: 1, outcome })
    };
    let told = |peering: PeeringId| {
        let outcome = PeeringOutcome::Closed;
        Command::ReportPeering(ReportPeering { cluster: cluster("south"), peering, epoch: 1, outcome })
    };
    let bundle = |peering: PeeringId| Command::OfferKeys(OfferKeys { bundle: keys(peering, 1, "south", Side::Donor) });
    let (no_lease, no_peering) = (LeaseId(77), PeeringId(77));
    for (existing, absent) in
        [(report(lease), report(no_lease)), (told(peering), told(no_peering)), (bundle(peering), bundle(no_peering))]
    {
        let (existing, absent) = (federation.refused(existing), federation.refused(absent));
        assert_eq!((existing.code, &existing.field, &existing.remedy), (absent.code, &absent.field, &absent.remedy));
        assert_eq!(existing.code, Code::NotFound);
        assert_eq!(existing.reason.replace(&existing.value, "ID"), absent.reason.replace(&absent.value, "ID"));
    }
}

impl Federation {
    /// Another lease at north.
    fn placed_at_north(&mut self) -> LeaseId {
        let north: ClusterId = cluster("north");
        let mut wanted = super::federation::spec(1, comity_core::demand::Share::Whole, "big");
        wanted.allow_donors = vec![north];
        let request = self.submit(wanted);
        self.place();
        self.state.requests[&request].lease.unwrap()
    }

    /// Replaces the agent of a member.
    fn rejoin(&mut self, name: &str) {
        let secret_sha256 = format!("{name:1>64}");
        let ttl = Millis::from_hours(1);
        let invite = InviteCluster { cluster: cluster(name), secret_sha256: secret_sha256.clone(), ttl, replace: true };
        self.ok(Command::InviteCluster(invite));
        self.ok(Command::JoinCluster(JoinCluster {
            cluster: cluster(name),
            secret_sha256,
            identity_key: "ed25519:another".to_owned(),
            certificate_not_after: Timestamp(self.now + 86_400_000),
        }));
    }
}
