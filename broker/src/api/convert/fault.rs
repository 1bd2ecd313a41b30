//! Converts device faults.

use comity_core::Refusal;
use comity_core::inventory::{Fault, FaultClass};
use comity_proto::v1;

/// Parses a fault of the device at `field`; without a severity, the error number decides it.
pub(super) fn parse(fault: &v1::DeviceFault, field: &str) -> Result<Fault, Refusal> {
    let class = v1::FaultClass::try_from(fault.class).map_err(|_| {
        Refusal::invalid(
            &format!("{field}.fault.class"),
            fault.class,
            "is no class of faults",
            "use application, link, degraded or lost, or leave it to the XID",
        )
    })?;
    let class = match class {
        v1::FaultClass::Unspecified if fault.xid > 0 => FaultClass::of_xid(fault.xid),
        v1::FaultClass::Unspecified | v1::FaultClass::Degraded => FaultClass::Degraded,
        v1::FaultClass::Application => FaultClass::Application,
        v1::FaultClass::Link => FaultClass::Link,
        v1::FaultClass::Lost => FaultClass::Lost,
    };
    let xid = (fault.xid > 0).then(|| format!("XID {}", fault.xid));
    let message = Some(fault.message.clone()).filter(|message| !message.is_empty());
    let message: Vec<String> = xid.into_iter().chain(message).collect();
    Ok(Fault { class, message: message.join(": ") })
}

/// Converts to the API message.
pub(super) fn to_proto(fault: &Fault) -> v1::DeviceFault {
    let class = match fault.class {
        FaultClass::Application => v1::FaultClass::Application,
        FaultClass::Link => v1::FaultClass::Link,
        FaultClass::Degraded => v1::FaultClass::Degraded,
        FaultClass::Lost => v1::FaultClass::Lost,
    };
    v1::DeviceFault { class: class.into(), xid: 0, message: fault.message.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_decides_where_no_class_is_said() {
        let fault = |class: v1::FaultClass, xid, message: &str| v1::DeviceFault {
            class: class.into(),
            xid,
            message: message.to_owned(),
        };
        for (said, class, message) in [
            (fault(v1::FaultClass::Unspecified, 79, ""), FaultClass::Lost, "XID 79"),
            (fault(v1::FaultClass::Unspecified, 13, "a.out"), FaultClass::Application, "XID 13: a.out"),
            (fault(v1::FaultClass::Link, 0, "port 3"), FaultClass::Link, "port 3"),
            (fault(v1::FaultClass::Unspecified, 0, ""), FaultClass::Degraded, ""),
            (fault(v1::FaultClass::Lost, 48, ""), FaultClass::Lost, "XID 48"),
        ] {
            let parsed = parse(&said, "device").expect("it is good");
            assert_eq!((parsed.class, parsed.message.as_str()), (class, message));
            assert_eq!(parse(&to_proto(&parsed), "device").expect("what is written is read"), parsed);
        }
        let refusal = parse(&v1::DeviceFault { class: 9, ..v1::DeviceFault::default() }, "d").expect_err("no class");
        assert_eq!((refusal.field.as_str(), refusal.value.as_str()), ("d.fault.class", "9"));
    }
}
