//! Converts the enums that `comity-types` has too.
//!
//! A message from a newer version may hold a value that this one does not know; prost's getters read it as unspecified.

use crate::v1;

/// A value that the message leaves open or that this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value is not specified")]
pub struct Unspecified;

macro_rules! convert {
    ($name:ident { $($variant:ident),+ }) => {
        impl From<comity_types::$name> for v1::$name {
            fn from(value: comity_types::$name) -> Self {
                match value {
                    $(comity_types::$name::$variant => Self::$variant,)+
                }
            }
        }

        impl TryFrom<v1::$name> for comity_types::$name {
            type Error = Unspecified;

            fn try_from(value: v1::$name) -> Result<Self, Unspecified> {
                match value {
                    v1::$name::Unspecified => Err(Unspecified),
                    $(v1::$name::$variant => Ok(Self::$variant),)+
                }
            }
        }
    };
}

convert!(Side { Origin, Donor });
convert!(Delivery { Namespace, VirtualNode });
convert!(RequestState { Queued, Placed, Completed, Cancelled, Failed });
convert!(LeaseState { Placed, Connecting, Active, Suspect, Reclaiming, Ending, Ended });
convert!(PeeringState { Proposed, Keys, Authenticating, Establishing, Established, Draining, Closed, Failed });
convert!(EndReason {
    Released,
    Expired,
    Cancelled,
    HoldExpired,
    DonorFailed,
    OriginFailed,
    OriginRefused,
    Reclaimed,
    Preempted,
    NotNeeded,
    PartFailed,
    DeviceLost,
    NodeLost,
    DonorLost,
    Idle,
    OriginRevoked,
    DonorRevoked
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_the_message_and_unknown_ones_are_unspecified() {
        let sent = i32::from(v1::Delivery::from(comity_types::Delivery::VirtualNode));
        let message = v1::Lease { delivery: sent, state: 99, ..v1::Lease::default() };
        assert_eq!(message.delivery().try_into(), Ok(comity_types::Delivery::VirtualNode));
        assert_eq!(comity_types::LeaseState::try_from(message.state()), Err(Unspecified));
    }
}
