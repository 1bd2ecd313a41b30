//! Converts deliveries: how a lease reaches the origin.

use std::collections::BTreeSet;

use comity_core::Refusal;
use comity_proto::v1;
use comity_types::Delivery;

/// Deliveries that an offer may name: each kind once.
const MAX_DELIVERIES: usize = 2;

/// A delivery by its number; `field` names it in the refusal.
pub fn parse(number: i32, field: &str) -> Result<Delivery, Refusal> {
    Delivery::try_from(v1::Delivery::try_from(number).unwrap_or_default()).map_err(|_| {
        Refusal::invalid(
            field,
            number,
            "is not a delivery that this broker knows",
            "use DELIVERY_NAMESPACE (1) or DELIVERY_VIRTUAL_NODE (2)",
        )
    })
}

/// Parses the deliveries of an offer.
pub fn parse_offered(numbers: &[i32]) -> Result<BTreeSet<Delivery>, Refusal> {
    if numbers.len() > MAX_DELIVERIES {
        return Err(Refusal::invalid(
            "offer.deliveries",
            numbers.len(),
            "deliveries are too many",
            format!("name at most {MAX_DELIVERIES}, each once"),
        ));
    }
    let mut offered = BTreeSet::new();
    for (index, number) in numbers.iter().enumerate() {
        let field = format!("offer.deliveries[{index}]");
        if !offered.insert(parse(*number, &field)?) {
            return Err(Refusal::invalid(&field, number, "comes twice", "name each delivery once"));
        }
    }
    Ok(offered)
}

/// Converts to the API message.
#[must_use]
pub fn to_proto(delivery: Delivery) -> i32 {
    v1::Delivery::from(delivery).into()
}

/// Converts to the API message, in a fixed order.
#[must_use]
pub fn offered_to_proto(offered: &BTreeSet<Delivery>) -> Vec<i32> {
    offered.iter().copied().map(to_proto).collect()
}
