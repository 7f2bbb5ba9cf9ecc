//! Page frames: the memory itself, which frames are free, who may have how many, and when a frame is free again.

pub(crate) mod allocator;
pub(crate) mod arena;
pub(crate) mod budget;
pub(crate) mod epoch;
pub(crate) mod frame_bitmap;
pub(crate) mod region;
pub(crate) mod shrinker;
