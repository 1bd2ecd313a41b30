//! Attacks on the donor's own arithmetic: more than its devices, its reserve or its limits allow.

use comity_proto::v1;

use super::AttackRound;
use crate::hostile::books::DONOR_CLUSTER;

impl AttackRound<'_> {
    fn free(&self, gpus: usize) -> v1::Placement {
        self.federation.broker.read(|books| books.place(DONOR_CLUSTER, gpus))
    }

    /// Grants a number of GPUs that no device stands for; returns the lease.
    pub(crate) fn zero_devices(&mut self, resource_count: u64) -> String {
        let mut placement = self.free(1);
        placement.nodes.iter_mut().for_each(|node| node.devices.clear());
        placement.resource_count = resource_count;
        self.grant_wrong(placement, "its count has no devices behind it")
    }

    /// Grants more GPUs than the placement has devices.
    pub(crate) fn inflate_count(&mut self) {
        let mut placement = self.free(1);
        placement.resource_count = self.dice.within(2..=u64::MAX / 2);
        self.grant_wrong(placement, "its count is larger than its devices");
    }

    /// Grants every device of the donor's first node, the reserved one included; returns the lease.
    pub(crate) fn exceed_reserve(&mut self) -> String {
        let placement = self.federation.broker.read(|books| {
            let first =
                books.offers.get(DONOR_CLUSTER).and_then(|offer| offer.nodes.last()).map(|node| node.id.clone());
            books.place_on(DONOR_CLUSTER, usize::MAX, |node, _| Some(&node.id) == first.as_ref())
        });
        self.grant_wrong(placement, "it takes GPUs that the donor reserves")
    }

    /// Grants the devices of the honest lease once more.
    pub(crate) fn same_device_twice(&mut self) {
        let lease = self.lease.clone();
        let held = self.federation.broker.read(|books| books.leases.get(&lease)?.placement.clone());
        self.grant_wrong(held.unwrap_or_default(), "its devices are in another lease");
    }

    /// Grants a device or node that the donor does not have.
    pub(crate) fn foreign_device(&mut self) {
        let mut placement = self.free(1);
        let is_node = self.dice.one_in(2);
        let device = u32::try_from(self.dice.within(100..=4_000_000_000)).unwrap_or(u32::MAX);
        for node in &mut placement.nodes {
            if is_node {
                node.node = format!("{:016x}", self.dice.bits());
            }
            node.devices.iter_mut().filter(|_| !is_node).for_each(|share| share.device = device);
        }
        self.grant_wrong(placement, "the donor has no such device");
    }

    /// Grants more than the donor lends at a time.
    pub(crate) fn exceed_max_lent(&mut self) {
        let placement = self.free(5);
        self.grant_wrong(placement, "the donor lends fewer GPUs at a time");
    }

    /// Grants CPU or memory that no node has.
    pub(crate) fn exceed_node(&mut self) {
        let mut placement = self.free(1);
        let (is_cpu, amount) = (self.dice.one_in(2), self.dice.within(1 << 30..=u64::MAX / 2));
        for node in &mut placement.nodes {
            *(if is_cpu { &mut node.cpu_milli } else { &mut node.memory_mib }) = amount;
        }
        self.grant_wrong(placement, "no node has so much CPU or memory");
    }

    /// Grants for longer than the donor lends.
    pub(crate) fn exceed_term(&mut self) {
        let (placement, peering) = (self.free(1), self.peering());
        let term_ms = self.dice.within(self.federation.max_lease_seconds() * 1_000 + 1..=u64::MAX / 2);
        self.invent_forbidden(&peering, placement, "the donor lends for a shorter time", |lease| {
            lease.term_ms = term_ms
        });
    }

    /// Names a lease under a fencing token far beyond the last one: one to set up, or one that ends. Returns the lease.
    pub(crate) fn huge_fencing_token(&mut self, token: u64, state: v1::LeaseState) -> String {
        let (placement, peering) = (self.free(1), self.peering());
        self.invent(&peering, placement, |lease| {
            lease.fencing_token = token;
            lease.set_state(state);
            // The books wait for the donor.
            lease.donor_ready = state == v1::LeaseState::Ending;
        })
    }

    /// Says that the honest lease has every GPU of the donor, others' and reserved ones included.
    pub(crate) fn repoint_devices(&mut self) {
        let (lease, all) = (
            self.lease.clone(),
            self.federation.broker.read(|books| books.place_on(DONOR_CLUSTER, usize::MAX, |_, _| true)),
        );
        self.federation.broker.tamper(move |cluster, desired| {
            for held in desired.leases.iter_mut().filter(|held| cluster == DONOR_CLUSTER && held.id == lease) {
                held.placement = Some(all.clone());
            }
        });
    }

    /// Invents a lease for a namespace and a tenant of its own choice.
    pub(crate) fn foreign_namespace(&mut self) {
        let (placement, peering) = (self.free(1), self.peering());
        self.invent(&peering, placement, |lease| {
            (lease.tenant, lease.target_namespace) = ("nobody".to_owned(), "kube-system".to_owned());
        });
    }

    /// Invents very many leases.
    pub(crate) fn very_many_leases(&mut self) {
        for _ in 0..self.dice.within(50..=300) {
            self.zero_devices(1);
        }
    }

    fn grant_wrong(&mut self, placement: v1::Placement, reason: &'static str) -> String {
        let peering = self.peering();
        self.invent_forbidden(&peering, placement, reason, |_| {})
    }
}
