//! Which of the records that the host and the kernel share are plain bytes.
#![allow(unsafe_code, reason = "that a record has no padding is a promise")]

use crate::abi::{LAUNCH_RANKS, Launch, Params, RegionInfo, Resident, StreamRange, TensorMap};
use crate::driver::{EncodedMap, Plain};

// SAFETY: integers, without padding: see the assertions.
unsafe impl Plain for StreamRange {}
// SAFETY: as above.
unsafe impl Plain for RegionInfo {}
// SAFETY: as above.
unsafe impl Plain for TensorMap {}
// SAFETY: as above; pointers are integers here.
unsafe impl Plain for Launch {}
// SAFETY: as above.
unsafe impl Plain for Resident {}

const _: () = assert!(size_of::<StreamRange>() == 2 * 4);
const _: () = assert!(size_of::<RegionInfo>() == 5 * 8 + 4 + 2 * 2);
const _: () = assert!(size_of::<TensorMap>() == 16 * 8);
const _: () = assert!(size_of::<Params>() == 26 * 8 + 8 + 10 * 4 && size_of::<Params>() == 256);
const _: () = assert!(size_of::<Launch>() == (2 + LAUNCH_RANKS) * 4 + 8 + LAUNCH_RANKS * size_of::<Params>());
const _: () = assert!(size_of::<Resident>() == 6 * 8);

impl From<EncodedMap> for TensorMap {
    fn from(map: EncodedMap) -> TensorMap {
        TensorMap { opaque: map.0 }
    }
}
