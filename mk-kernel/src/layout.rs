//! Layouts that Rust and CUDA share: written in Rust once, given to C as text with an assertion for each offset.

use std::marker::PhantomData;

/// One field of a struct, as C declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CField {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its type, without what stands behind the name.
    pub(crate) c_type: String,
    /// Length of an array.
    pub(crate) len: Option<usize>,
    /// In bytes.
    pub(crate) offset: usize,
    /// In bytes.
    pub(crate) bytes: usize,
    /// What it is, a line each.
    pub(crate) doc: Vec<&'static str>,
}

/// A struct, as C declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CStruct {
    pub(crate) name: &'static str,
    pub(crate) bytes: usize,
    pub(crate) align: usize,
    pub(crate) fields: Vec<CField>,
    /// What it is, a line each.
    pub(crate) doc: Vec<&'static str>,
}

/// A type that may stand in a shared struct.
pub(crate) trait CType {
    /// Its name in C; of an array, that of its elements.
    fn c_type() -> String;
    /// Length of an array.
    const LEN: Option<usize> = None;
}

macro_rules! c_numbers {
    ($($t:ty => $c:literal),*) => {$(
        impl CType for $t {
            fn c_type() -> String {
                $c.into()
            }
        }
    )*};
}
c_numbers!(u8 => "u8", u16 => "u16", u32 => "u32", u64 => "u64", mk_core::OpId => "u16");

impl<T: CType, const N: usize> CType for [T; N] {
    fn c_type() -> String {
        T::c_type()
    }
    const LEN: Option<usize> = Some(N);
}

/// A struct that both sides know by its layout.
pub(crate) trait Layout {
    fn layout() -> CStruct;
}

/// A device address of a `T` that the kernel only reads: `T const*`.
#[derive(Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct ConstPtr<T>(pub u64, PhantomData<T>);

/// A device address of a `T` that the kernel writes: `T*`.
#[derive(Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct MutPtr<T>(pub u64, PhantomData<T>);

macro_rules! pointer {
    ($name:ident, $suffix:literal) => {
        impl<T> $name<T> {
            /// The pointer to this address of the device's memory.
            pub const fn new(address: u64) -> $name<T> {
                $name(address, PhantomData)
            }
        }
        impl<T> Clone for $name<T> {
            fn clone(&self) -> $name<T> {
                *self
            }
        }
        impl<T> Copy for $name<T> {}
        impl<T> Default for $name<T> {
            fn default() -> $name<T> {
                $name::new(0)
            }
        }
        impl<T: CType> CType for $name<T> {
            fn c_type() -> String {
                T::c_type() + $suffix
            }
        }
    };
}
pointer!(ConstPtr, " const*");
pointer!(MutPtr, "*");

/// Describes a struct to C. A field that is left out, or has another type, does not compile.
macro_rules! layout {
    ($(#[doc = $doc:literal])* $name:ident { $($(#[doc = $fdoc:literal])* $field:ident: $t:ty),* $(,)? }) => {
        impl $crate::layout::Layout for $name {
            fn layout() -> $crate::layout::CStruct {
                // Never called: it compiles only if all fields are named, with their types.
                let _ = |$name { $($field),* }: &$name| {
                    $(let _: &$t = $field;)*
                };
                $crate::layout::CStruct {
                    name: stringify!($name),
                    bytes: size_of::<$name>(),
                    align: align_of::<$name>(),
                    doc: vec![$($doc),*],
                    fields: vec![$($crate::layout::CField {
                        name: stringify!($field),
                        c_type: <$t as $crate::layout::CType>::c_type(),
                        len: <$t as $crate::layout::CType>::LEN,
                        offset: std::mem::offset_of!($name, $field),
                        bytes: size_of::<$t>(),
                        doc: vec![$($fdoc),*],
                    }),*],
                }
            }
        }
        impl $crate::layout::CType for $name {
            fn c_type() -> String {
                stringify!($name).into()
            }
        }
    };
}

/// Declares a struct of the kernel's and describes it to C, from one text.
macro_rules! device_struct {
    ($(#[doc = $doc:literal])* $(#[repr($align:meta)])? pub struct $name:ident {
        $($(#[doc = $fdoc:literal])* pub $field:ident: $t:ty),* $(,)?
    }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C $(, $align)?)]
        pub struct $name { $($(#[doc = $fdoc])* pub $field: $t),* }

        $crate::layout::layout! { $(#[doc = $doc])* $name { $($(#[doc = $fdoc])* $field: $t),* } }
    };
}

/// Declares an enum of `u32` codes that C knows by the same names, in capitals after a prefix.
macro_rules! device_codes {
    ($(#[doc = $doc:literal])* pub enum $name:ident as $prefix:literal {
        $($(#[doc = $vdoc:literal])* $variant:ident = $code:literal => $c:literal),* $(,)?
    }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[doc = $vdoc])* $variant = $code),* }

        impl $name {
            /// The one with this code.
            pub const fn from_code(code: u32) -> Option<$name> {
                match code {
                    $($code => Some($name::$variant),)*
                    _ => None,
                }
            }

            /// For C: name, code, and what it is.
            pub(crate) fn codes() -> $crate::layout::CCodes {
                $crate::layout::CCodes {
                    name: stringify!($name),
                    doc: vec![$($doc),*],
                    codes: vec![$((concat!($prefix, $c), $code as u64, vec![$($vdoc),*])),*],
                }
            }
        }
    };
}

/// Named codes, as C declares them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CCodes {
    pub(crate) name: &'static str,
    pub(crate) doc: Vec<&'static str>,
    /// Name, code, what it is.
    pub(crate) codes: Vec<(&'static str, u64, Vec<&'static str>)>,
}

pub(crate) use {device_codes, device_struct, layout};
