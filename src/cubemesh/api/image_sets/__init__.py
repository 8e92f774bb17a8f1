"""Image sets: preparing, checking, listing and sampling them (`cubemesh prepare`)."""

from cubemesh.data.prepare.image_set import check_image_set, list_image_set, prepare_images
from cubemesh.data.prepare.picture_sample import sample_image_set

__all__ = ["check_image_set", "list_image_set", "prepare_images", "sample_image_set"]
