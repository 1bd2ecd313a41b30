//! Property test: both sides finish the exchange after any faults.

use proptest::prelude::*;

use super::*;

/// Faults between two steps.
#[derive(Clone, Copy, Debug)]
enum InjectedFault {
    None,
    /// The process restarts and loses its memory.
    Restart,
    /// The tunnel's keys are replaced: messages in flight are void.
    NewEpoch,
    /// The broker refuses all waiting messages.
    Refused,
    /// Envelopes in flight are deleted unread.
    Lost,
    /// All records of the exchange on one side are gone, and its keys with them.
    Forgotten,
}

/// Both sides, and a broker between them.
struct Pair {
    sides: [Sim; 2],
    epoch: u32,
}

impl Pair {
    fn new(by_token: bool) -> Self {
        let mut donor = connected_donor().with_node_lease();
        donor.service.authentication.by_token = by_token;
        Self { sides: [donor, connected_origin().with_node_lease()], epoch: 1 }
    }

    /// One step of one side, if there is one.
    fn advance(&mut self, side: usize) -> bool {
        let ours = |step: &Step| matches!(step, Step::Liqo(_) | Step::Lease(LeaseStep::AdmitLease(_)));
        let Some(step) = self.sides[side].plan().into_iter().find(ours) else { return false };
        self.sides[side].carry_out(&step);
        true
    }

    /// The broker takes each side's messages and delivers them to the other.
    fn relay(&mut self) {
        for side in 0..2 {
            self.sides[side].acknowledged();
            for sent in std::mem::take(&mut self.sides[side].sealed) {
                let other = &mut self.sides[1 - side];
                if sent.key.epoch == self.epoch {
                    other.desired.envelopes.retain(|held| held.key.step != sent.key.step);
                    other.desired.envelopes.push(sent);
                }
            }
        }
    }

    fn inject(&mut self, fault: InjectedFault, side: usize) {
        match fault {
            InjectedFault::None => self.relay(),
            InjectedFault::Restart => self.sides[side].restart(),
            InjectedFault::NewEpoch => self.new_epoch(),
            InjectedFault::Refused => {
                let sim = &mut self.sides[side];
                if !sim.sealed.is_empty() {
                    sim.change_liqo(|record| {
                        if let Some(sealed) = &mut record.sealed {
                            sealed.refused = true;
                        }
                    });
                    sim.sealed.clear();
                }
                sim.acknowledged();
            }
            InjectedFault::Lost => self.sides[side].desired.envelopes.clear(),
            InjectedFault::Forgotten => {
                self.sides[side].records.liqo.clear();
                self.new_epoch();
            }
        }
    }

    fn new_epoch(&mut self) {
        self.epoch += 1;
        let [donor, origin] = std::mem::replace(&mut self.sides, [Sim::new(Side::Donor), Sim::new(Side::Origin)]);
        self.sides = [next_epoch(donor, self.epoch), next_epoch(origin, self.epoch)];
    }
}

proptest! {
    /// After any faults at any time, both sides complete the exchange, and then nothing is left to do.
    #[test]
    fn the_exchange_always_completes(
        events in prop::collection::vec((0_usize..2, 0_usize..6), 0..24),
        by_token in any::<bool>(),
    ) {
        let faults = [
            InjectedFault::None,
            InjectedFault::Restart,
            InjectedFault::NewEpoch,
            InjectedFault::Refused,
            InjectedFault::Lost,
            InjectedFault::Forgotten,
        ];
        let mut pair = Pair::new(by_token);
        for (side, fault) in events {
            pair.advance(side);
            pair.inject(faults[fault], side);
        }
        for round in 0..40 {
            pair.relay();
            let moved = [pair.advance(0), pair.advance(1)];
            if moved == [false; 2] {
                if pair.sides.iter().all(Sim::is_done) {
                    break;
                }
                // The wait for a lost envelope ends with the envelope's lifetime.
                for sim in &mut pair.sides {
                    sim.now_ms += HOUR;
                }
            }
            prop_assert!(round < 39, "never done: {:?}", pair.sides.each_ref().map(Sim::names));
        }
        prop_assert!(pair.sides.iter().all(Sim::is_done));
    }
}
