//! Argument structs that Rust and CUDA share.

use crate::{Limits, Rank, RegionId};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

/// One field of an argument struct, as C sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its C type.
    pub c_type: &'static str,
    /// Its offset in bytes.
    pub offset: usize,
    /// Its size in bytes.
    pub bytes: usize,
    /// Whether it names a region of the program.
    pub is_region: bool,
}

/// A handler's arguments: plain data of at most [`Limits::ARG_BYTES`] bytes with the layout of a C struct.
///
/// Implement it with [`device_args!`](crate::device_args), which derives all of it from the fields.
pub trait DeviceAbi: Copy + PartialEq + Debug + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Name of the C struct.
    const C_NAME: &'static str;
    /// Its fields, in order of their offsets.
    const FIELDS: &'static [Field];
    /// The bytes of a task record's argument area; unused bytes are 0.
    fn to_bytes(&self) -> [u8; Limits::ARG_BYTES];
    /// The arguments in these bytes. Any bytes are some arguments: `spec` decides whether they are legal.
    fn from_bytes(bytes: &[u8; Limits::ARG_BYTES]) -> Self;
}

/// A type that may stand in an argument struct.
pub trait DeviceField: Copy {
    /// Its C name.
    const C_TYPE: &'static str;
    /// Whether it names a region of the program.
    const IS_REGION: bool = false;
    /// Writes it, little-endian.
    fn put(self, to: &mut [u8]);
    /// Reads it, little-endian.
    fn get(from: &[u8]) -> Self;
}

macro_rules! number_field {
    ($($t:ty => $c:literal),*) => {$(
        impl DeviceField for $t {
            const C_TYPE: &'static str = $c;
            #[inline]
            fn put(self, to: &mut [u8]) {
                to[..size_of::<$t>()].copy_from_slice(&self.to_le_bytes());
            }
            #[inline]
            fn get(from: &[u8]) -> $t {
                let mut b = [0; size_of::<$t>()];
                b.copy_from_slice(&from[..size_of::<$t>()]);
                <$t>::from_le_bytes(b)
            }
        }
    )*};
}
number_field!(u16 => "u16", u32 => "u32", u64 => "u64", i32 => "i32", f32 => "float");

macro_rules! id_field {
    ($($t:ident: $is_region:literal),*) => {$(
        impl DeviceField for $t {
            const C_TYPE: &'static str = "u16";
            const IS_REGION: bool = $is_region;
            #[inline]
            fn put(self, to: &mut [u8]) {
                self.0.put(to);
            }
            #[inline]
            fn get(from: &[u8]) -> $t {
                $t(u16::get(from))
            }
        }
    )*};
}
id_field!(RegionId: true, Rank: false);

/// Declares an argument struct with the layout of C, and derives [`DeviceAbi`] from its fields.
///
/// ```
/// use mk_core::{DeviceAbi, RegionId, device_args};
///
/// device_args! {
///     /// Arguments of a handler that fills a row.
///     pub struct FillArgs {
///         /// The region.
///         pub dst: RegionId,
///         /// The row.
///         pub row: u64,
///         /// The value.
///         pub value: f32,
///     }
/// }
/// let args = FillArgs { dst: RegionId(3), row: 1 << 40, value: 0.5 };
/// assert_eq!(FillArgs::from_bytes(&args.to_bytes()), args);
/// assert_eq!(FillArgs::FIELDS[1].offset, 8);
/// ```
///
/// A struct that does not fit into a task record does not compile.
#[macro_export]
macro_rules! device_args {
    ($(#[$doc:meta])* $vis:vis struct $name:ident { $($(#[$fdoc:meta])* $fvis:vis $field:ident : $t:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, $crate::macro_support::Serialize, $crate::macro_support::Deserialize)]
        #[serde(crate = "::mk_core::macro_support::serde", deny_unknown_fields)]
        #[repr(C)]
        $vis struct $name { $($(#[$fdoc])* $fvis $field: $t),* }

        const _: () = assert!(
            size_of::<$name>() <= $crate::Limits::ARG_BYTES,
            "the arguments do not fit into a task record"
        );

        impl $crate::DeviceAbi for $name {
            const C_NAME: &'static str = stringify!($name);
            const FIELDS: &'static [$crate::Field] = &[$($crate::Field {
                name: stringify!($field),
                c_type: <$t as $crate::DeviceField>::C_TYPE,
                offset: core::mem::offset_of!($name, $field),
                bytes: size_of::<$t>(),
                is_region: <$t as $crate::DeviceField>::IS_REGION,
            }),*];
            #[inline]
            fn to_bytes(&self) -> [u8; $crate::Limits::ARG_BYTES] {
                let mut b = [0u8; $crate::Limits::ARG_BYTES];
                let _ = &mut b;
                $($crate::DeviceField::put(self.$field, &mut b[core::mem::offset_of!($name, $field)..]);)*
                b
            }
            #[inline]
            fn from_bytes(b: &[u8; $crate::Limits::ARG_BYTES]) -> Self {
                let _ = b;
                $name { $($field: $crate::DeviceField::get(&b[core::mem::offset_of!($name, $field)..])),* }
            }
        }
    };
}
