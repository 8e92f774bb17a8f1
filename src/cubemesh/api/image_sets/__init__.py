"""Image sets: preparing, checking and listing them (`cubemesh prepare`)."""

from cubemesh.data.prepare.image_set import check_image_set, list_image_set, prepare_images

__all__ = ["check_image_set", "list_image_set", "prepare_images"]
